package payload_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/payload"
)

const serving = "serve-expressions"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == serving {
		if err := payload.Serve(os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func newChild(t *testing.T) *payload.Child {
	t.Helper()
	child, err := payload.NewChild(os.Args[0], serving)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, child.Close()) })
	return child
}

// A child gives the same results and errors as the process itself, to the byte.
func TestChild_AsInProcess(t *testing.T) {
	t.Parallel()
	child, here := newChild(t), &payload.InProcess{}
	for _, c := range [][2]string{
		{`.a = 2`, `{ "id": 9007199254740993, "a": 1 }`},
		{`.`, "{}\n"},
		{`.a.b`, `{"a":1}`},
		{`empty`, `{}`},
		{`.[]`, `[1,2]`},
		{`.a =`, `{}`},
		{`.a = 1`, `no JSON`},
		{strings.Repeat("(", 70_000), `{}`},
		{strings.Repeat("(", 2_000) + "." + strings.Repeat(")", 2_000), `{}`},
	} {
		want, fault := here.Evaluate(t.Context(), c[0], []byte(c[1]))
		got, err := child.Evaluate(t.Context(), c[0], []byte(c[1]))
		require.Equal(t, want, got, "%.20s", c[0])
		if fault == nil {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, fault.Error(), "%.20s", c[0])
		require.Equal(t, errors.Is(fault, driver.ErrInvalid), errors.Is(err, driver.ErrInvalid), "%.20s", c[0])
	}
}

// If no process can be started, no payload is to blame.
func TestChild_NotStarted(t *testing.T) {
	t.Parallel()
	child, err := payload.NewChild(filepath.Join(t.TempDir(), "missing"))
	require.NoError(t, err)
	for range 3 {
		_, err = child.Evaluate(t.Context(), ".", []byte(`{}`))
		require.ErrorIs(t, err, payload.ErrNotEvaluated)
	}
	require.NoError(t, child.Close())
	_, err = child.Evaluate(t.Context(), ".", []byte(`{}`))
	require.ErrorIs(t, err, payload.ErrNotEvaluated)
}

// An expression that would take all memory, or never end, ends only its process, and the next one is answered.
func TestChild_Bounded(t *testing.T) {
	t.Parallel()
	child := newChild(t)
	for _, expression := range []string{
		`"x" * 1e9`,
		`[range(1e9)]`,
		`reduce range(1e9) as $i (.; .)`,
		`def f: [f]; f`,
		`[limit(1e8; repeat("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"))] | add`,
	} {
		_, err := child.Evaluate(t.Context(), expression, []byte(`{}`))
		require.Error(t, err, expression)
		t.Log(expression, err)
		got, err := child.Evaluate(t.Context(), ".x = 1", []byte(`{}`))
		require.NoError(t, err)
		require.JSONEq(t, `{"x":1}`, string(got))
	}
}

// A caller that is gone takes no process: it would be killed, and the next caller would wait
// for a new one. Which of two ready channels a select takes is random, so it is called many times.
func TestChild_CallerGone(t *testing.T) {
	t.Parallel()
	child, err := payload.NewChild(filepath.Join(t.TempDir(), "missing"))
	require.NoError(t, err)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		_, err = child.Evaluate(gone, ".", []byte(`{}`))
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, payload.ErrNotEvaluated, "it was started")
	}
	require.NoError(t, child.Close())
}

// Many callers share the processes, and the final shutdown waits for none that is free.
func TestChild_Shared(t *testing.T) {
	t.Parallel()
	child := newChild(t)
	var callers sync.WaitGroup
	got, errs := make([][]byte, 16), make([]error, 16)
	for n := range got {
		callers.Go(func() {
			got[n], errs[n] = child.Evaluate(t.Context(), fmt.Sprintf(".x = %d", n), []byte(`{}`))
		})
	}
	callers.Wait()
	for n := range got {
		require.NoError(t, errs[n])
		require.JSONEq(t, fmt.Sprintf(`{"x":%d}`, n), string(got[n]))
	}
	require.NoError(t, child.Close())
	_, err := child.Evaluate(t.Context(), ".x = 1", []byte(`{}`))
	require.ErrorIs(t, err, driver.ErrClosed)
	_, err = payload.NewChild()
	require.ErrorIs(t, err, driver.ErrInvalid)
}
