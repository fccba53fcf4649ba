package redrive_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/logbuffer"
)

// counted is a consumer whose broker counts its readers.
type counted struct {
	*consumer

	readers func(ctx context.Context, origin envelope.Origin) (int, error)
}

func (c counted) Readers(ctx context.Context, origin envelope.Origin) (int, error) {
	return c.readers(ctx, origin)
}

// readersOf returns an operator of three dead letters for each consumer, in their order.
func readersOf(t *testing.T, readers func(ctx context.Context, origin envelope.Origin) (int, error),
	consumers ...string,
) (operator, *consumer, *logbuffer.Buffer) {
	t.Helper()
	store := newStore(t)
	c := &consumer{}
	c.letters, _ = newLetters(t, unclosed{store}, t.TempDir())
	for i := range 3 * len(consumers) {
		d := death(i)
		d.Origin.Consumer = consumers[i/3]
		stored(t, store, d)
	}
	var r dlq.Redriver = counted{c, readers}
	if readers == nil {
		r = c
	}
	logs := &logbuffer.Buffer{}
	return operateBy(t, dlq.ManagerConfig{
		Store: store, Redriver: r, Logger: slog.New(slog.NewJSONHandler(logs, nil)),
	}), c, logs
}

// Before a run a person sees where messages would wait because no consumer reads there, and nothing otherwise.
func TestPreviewRun_Readers(t *testing.T) {
	t.Parallel()
	readers := func(_ context.Context, origin envelope.Origin) (int, error) {
		switch origin.Consumer {
		case "billing":
			return 0, nil
		case "mail":
			return 2, nil
		case "stock":
			return 0, errors.ErrUnsupported
		case "gone":
			return 0, fmt.Errorf("%w: broker mem: connection refused", redrive.ErrUnreachable)
		}
		panic("a bug of the driver")
	}
	m, _, _ := readersOf(t, readers, "billing", "mail", "stock", "audit", "gone")
	p, err := m.PreviewRun(t.Context(), redrive.Spec{}, 100)
	require.NoError(t, err)
	want := []redrive.Destination{
		{Broker: "mem", Topic: "orders", Consumer: "billing"},
		{Broker: "mem", Topic: "orders", Consumer: "mail", Readers: 2},
		{Broker: "mem", Topic: "orders", Consumer: "stock", Readers: -1},
		{Broker: "mem", Topic: "orders", Consumer: "audit", Readers: -1},
		{Broker: "mem", Topic: "orders", Consumer: "gone", Readers: -1, Unreachable: "a redrive would fail: broker mem: " +
			"connection refused"},
	}
	require.Equal(t, want, p.Destinations)
	for i := range p.Destinations {
		require.Equal(t, i == 0 || i == 4, p.Destinations[i].Warning() != "", i)
	}
	require.Contains(t, p.Destinations[0].Warning(), "no consumer reads orders of billing")
	require.Equal(t, want, p.Wire().Destinations)

	m, _, _ = readersOf(t, nil, "billing")
	p, err = m.PreviewRun(t.Context(), redrive.Spec{}, 0)
	require.NoError(t, err)
	require.Equal(t, []redrive.Destination{{Broker: "mem", Topic: "orders", Consumer: "billing", Readers: -1}},
		p.Destinations, "a redriver that counts none")
}

// A preview of large messages shows as many as a run reads at once: a hundred would fill the memory, and a jq
// expression over them takes longer than a request.
func TestPreviewRun_LargeMessages(t *testing.T) {
	t.Parallel()
	m, store := operated(t, 0, &consumer{})
	const letters, size = 6, 4 << 20
	storeLarge(t, store, letters, size)
	p, err := m.PreviewRun(t.Context(), redrive.Spec{}, 0)
	require.NoError(t, err)
	require.Equal(t, int64(letters), p.Count)
	require.Len(t, p.Sample, 16<<20/size)
}

// A broker that does not answer, not even when its context ends, delays neither the preview nor the answers about
// others.
func TestPreviewRun_FrozenBroker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		thaw := make(chan struct{})
		m, _, _ := readersOf(t, func(_ context.Context, origin envelope.Origin) (int, error) {
			switch origin.Consumer {
			case "frozen":
				<-thaw
			case "down":
				return 0, fmt.Errorf("%w: no answer", redrive.ErrUnreachable)
			}
			return 0, nil
		}, "frozen", "billing", "down")
		began := time.Now()
		p, err := m.PreviewRun(t.Context(), redrive.Spec{}, 100)
		require.NoError(t, err)
		require.Equal(t, 2*time.Second, time.Since(began))
		require.Equal(t, []int{-1, 0}, []int{p.Destinations[0].Readers, p.Destinations[1].Readers})
		require.Contains(t, p.Destinations[2].Unreachable, "no answer")
		close(thaw)
		synctest.Wait()
	})
}

// A run logs once that no consumer reads its destination; it still sends, because a consumer may come.
func TestRun_WarnsOfNoReader(t *testing.T) {
	t.Parallel()
	m, c, logs := readersOf(t, func(_ context.Context, origin envelope.Origin) (int, error) {
		return len(origin.Consumer) - len("billing"), nil
	}, "billing", "invoices")
	run, err := m.StartRun(t.Context(), redrive.Spec{ID: "monday", Canary: []int{1, 4}}, ana)
	require.NoError(t, err)
	run, err = m.Drive(t.Context(), run.ID)
	require.NoError(t, err)
	require.Equal(t, []any{redrive.Completed, 6}, []any{run.State, c.total()})
	text := logs.String()
	require.Equal(t, 1, strings.Count(text, "no consumer reads"), text)
	require.Contains(t, text, "no consumer reads orders of billing now")
	require.Contains(t, text, `"run":"monday"`)
}
