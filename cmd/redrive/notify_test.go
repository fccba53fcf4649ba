package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
)

// Serve notifies a webhook and Slack of a new cause, and tries again if a receiver does not accept it; the log shows
// neither their URLs nor the secret.
func TestServe_Notifies(t *testing.T) {
	hermetic(t)
	dir := t.TempDir()
	store, file := filepath.Join(dir, "dead.db"), filepath.Join(dir, "redrive.yaml")
	var tries atomic.Int64
	said := make(chan string, 10)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path == "/s3cret-hook" && tries.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		said <- r.URL.Path + " " + string(body)
	}))
	t.Cleanup(web.Close)
	letters, err := dlq.Open(t.Context(), "sqlite:"+store+"?synchronous=normal", dlq.WithoutSpool())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, letters.Close()) })
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `
store: {url: %q}
server: {address: %q, public_url: "http://ops.example/redrive"}
redaction: {texts: ['\d{4}-\d{4}']}
notifications:
  interval: 5ms
  receivers:
    - {name: ops, url: %q, secret: s3cret-key, on: [new_cause]}
    - {name: chat, url: %q, format: slack}
`, "sqlite:"+store+"?synchronous=normal", anyPort, web.URL+"/s3cret-hook", web.URL+"/s3cret-chat"), 0o600))
	_, stderr, stop := start(t, "serve", "--config", file)
	die := func(n int) {
		_, err := letters.Store().Put(t.Context(), dlq.NewEntry(&envelope.DeadLetter{
			Message: message.NewMessage(fmt.Sprint("m-", n), []byte("order")), Reason: envelope.ReasonExhausted,
			Handler: "pay", Attempts: 4, At: time.Now(),
			Err:    envelope.Error{Message: "b" + strings.Repeat("a", n) + "nk: card 1234-5678 refused"},
			Origin: envelope.Origin{Topic: "orders", Consumer: "billing"},
		}))
		require.NoError(t, err)
	}
	heard := map[string]bool{}
	for n := 0; len(heard) < 2; n++ { // nothing is reported until the notifier runs
		die(n)
		select {
		case text := <-said:
			path := text[:len("/s3cret-hook")]
			heard[path] = true
			require.Contains(t, text, "refused")
			require.NotContains(t, text, "1234-5678", "what viewers may not see")
		case <-time.After(100 * time.Millisecond):
			require.Less(t, n, 600, stderr)
		}
	}
	require.Equal(t, exitOK, stop(), stderr)
	require.NotContains(t, stderr.String(), "s3cret")
}
