package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/notify"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// The pause that a receiver requests was ignored. It is honoured where it is longer than the backoff, up to the longest
// pause, and it does not make a refusal a reason to try again.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const backoff = 10 * time.Second
		broker, err := memory.New(brokers.Config{})
		require.NoError(t, err)
		pipeline, err := middleware.New(middleware.Config{
			Rescheduler: broker, DeadLetters: broker, Backoff: middleware.Constant(backoff),
			Logger: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		for name, tt := range map[string]struct {
			status int
			header string
			delay  time.Duration // 0 for a dead letter
		}{
			"seconds":               {429, "40", 40 * time.Second},
			"a date":                {503, time.Now().UTC().Add(50 * time.Second).Format(http.TimeFormat), 50 * time.Second},
			"a date in the past":    {503, time.Now().UTC().Add(-time.Hour).Format(http.TimeFormat), backoff},
			"less than the backoff": {503, "1", backoff},
			"more than the longest": {503, "86400", noticeLongest},
			"nothing":               {503, "", backoff},
			"nonsense":              {503, "soon", backoff},
			"with another refusal":  {403, "40", 0},
			"with a redirect":       {307, "40", backoff}, // an unknown error, which is retried
		} {
			header := http.Header{}
			if tt.header != "" {
				header.Set("Retry-After", tt.header)
			}
			decided := pipeline.Decide(message.NewMessage("1", nil),
				retryAfter(&notify.StatusError{Receiver: "ops", Status: tt.status, Header: header}, backoff))
			require.Equal(t, tt.delay, decided.Delay, name)
			require.Equal(t, tt.delay == 0, decided.Outcome == middleware.OutcomeDeadLetter, name)
			require.ErrorContains(t, decided.Err, `receiver "ops"`, name)
		}
		require.ErrorIs(t, retryAfter(io.EOF, backoff), io.EOF)
		require.NoError(t, retryAfter(nil, backoff))
		require.NoError(t, broker.Close())
	})
}

// refusal is when a notice was refused.
type refusal struct {
	id string
	at time.Time
}

// Serve notifies a webhook and Slack of a new cause, and tries again if a receiver does not accept it; the log shows
// neither their URLs nor the secret.
func TestServe_Notifies(t *testing.T) {
	hermetic(t)
	dir := t.TempDir()
	store, file := filepath.Join(dir, "dead.db"), filepath.Join(dir, "redrive.yaml")
	var refused atomic.Pointer[refusal]
	said, again := make(chan string, 10), make(chan time.Duration, 1)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		this := &refusal{r.Header.Get(notify.HeaderID), time.Now()}
		if r.URL.Path == "/s3cret-hook" && refused.CompareAndSwap(nil, this) {
			w.Header().Set("Retry-After", "2") // the backoff is a second
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if first := refused.Load(); first != nil && first.id == this.id {
			select {
			case again <- this.at.Sub(first.at):
			default: // a notice may arrive twice
			}
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
	select {
	case pause := <-again:
		require.GreaterOrEqual(t, pause, 2*time.Second, "the receiver has requested it")
	case <-time.After(2 * time.Minute):
		require.Fail(t, "the refused notice was not tried again", stderr)
	}
	require.Equal(t, exitOK, stop(), stderr)
	require.NotContains(t, stderr.String(), "s3cret")
}
