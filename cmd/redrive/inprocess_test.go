package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A response is read while it is written, one that breaks off is an error, and closing it ends its handler.
func TestInProcess(t *testing.T) {
	t.Parallel()
	next, ended := make(chan string), make(chan struct{})
	web := &http.Client{Transport: inProcess{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/stream":
			defer close(ended)
			for {
				select {
				case text := <-next:
					_, _ = io.WriteString(w, text)
				case <-r.Context().Done():
					return
				}
			}
		case "/broken":
			_, _ = io.WriteString(w, "half")
			panic(http.ErrAbortHandler)
		case "/wait":
			<-r.Context().Done()
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			w.Header().Set("X-Echo", r.Header.Get("X-Echo"))
			w.WriteHeader(http.StatusTeapot)
		}
	})}}
	ask := func(ctx context.Context, path string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
		require.NoError(t, err)
		r.Header.Set("X-Echo", "yes")
		return web.Do(r)
	}

	response, err := ask(t.Context(), "/")
	require.NoError(t, err)
	require.Equal(t, http.StatusTeapot, response.StatusCode)
	require.Equal(t, "yes", response.Header.Get("X-Echo"))
	require.NoError(t, response.Body.Close())

	go func() { next <- "one" }()
	response, err = ask(t.Context(), "/stream")
	require.NoError(t, err)
	for _, want := range []string{"one", "two"} {
		part := make([]byte, 3)
		_, err := io.ReadFull(response.Body, part)
		require.NoError(t, err)
		require.Equal(t, want, string(part))
		if want == "one" {
			next <- "two"
		}
	}
	require.NoError(t, response.Body.Close())
	<-ended

	response, err = ask(t.Context(), "/broken")
	require.NoError(t, err)
	_, err = io.ReadAll(response.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.NoError(t, response.Body.Close())

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = ask(ctx, "/wait") //nolint:bodyclose // there is none
	require.ErrorIs(t, err, context.Canceled)
}

// A failure of the store is named as the store did, not as an HTTP status.
func TestLocal_ShowsTheStoresError(t *testing.T) {
	hermetic(t)
	t.Chdir(t.TempDir())
	seed(t, "dead.db")
	a := &app{out: io.Discard, err: io.Discard}
	a.flags.store = "dead.db"
	m, err := a.manager(t.Context())
	require.NoError(t, err)
	require.NoError(t, a.close())
	_, err = m.GetRun(t.Context(), "x")
	require.Equal(t, exitError, exitCode(t.Context(), err))
	require.Equal(t, "run x: closed", errorText(err))
}

// What an import has stored before a bad line is known, on the store and through a server.
func TestImport_Partial(t *testing.T) {
	hermetic(t)
	t.Chdir(t.TempDir())
	seed(t, "from.db")
	code, lines, stderr := command(t, "dlq", "export", "--store", "from.db")
	require.Equal(t, exitOK, code, stderr)
	require.NoError(t, os.WriteFile("damaged.jsonl", []byte(lines+"damaged\n"), 0o600))
	code, _, stderr = command(t, "dlq", "import", "damaged.jsonl", "--store", "dead.db")
	require.Equal(t, exitPartial, code, stderr)
	require.Contains(t, stderr, "5 stored, 0 already there\nredrive: import: line 6: invalid request: ")

	seedQueue(t, "queue.db")
	require.NoError(t, os.Remove("dead.db"))
	server := serveSeed(t, "")
	code, _, stderr = command(t, "dlq", "import", "damaged.jsonl", "--server", server)
	require.Equal(t, exitPartial, code, stderr)
	require.Contains(t, stderr, "5 stored, 0 already there\nredrive: import: line 6: invalid request: ")
}

// More ids than fit into a URL, or into a body, can be looked at.
func TestDryRun_ManyIDs(t *testing.T) {
	hermetic(t)
	t.Chdir(t.TempDir())
	seed(t, "dead.db")
	code, stdout, stderr := command(t, "dlq", "resolve", "1-2500", "--dry-run", "--store", "dead.db")
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stderr, "dry run: 5 dead letters")
	require.Contains(t, stdout, "message-5")
	code, _, stderr = command(t, "dlq", "redrive", "1-20000", "--dry-run", "--store", "dead.db")
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stderr, "dry run: 5 dead letters")
}

// A dry run leaves out what the change would refuse.
func TestDryRun_LeavesOutTheRefused(t *testing.T) {
	hermetic(t)
	t.Chdir(t.TempDir())
	seed(t, "dead.db")
	t.Setenv("REDRIVE_STORE", "dead.db")
	code, _, stderr := command(t, "dlq", "discard", "2")
	require.Equal(t, exitOK, code, stderr)
	for _, verb := range []string{"resolve", "discard", "park", "restore", "redrive"} {
		code, stdout, stderr := command(t, "dlq", verb, "1", "2", "99", "--dry-run")
		require.Equal(t, exitOK, code, stderr)
		require.Contains(t, stderr, "dry run: 1 dead letter, nothing is changed\n2 of the ids would be refused", verb)
		require.Equal(t, verb == "restore", strings.Contains(stdout, "DISCARDED"), stdout)
	}
}
