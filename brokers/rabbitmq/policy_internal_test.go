package rabbitmq

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
)

// A look at a policy that is given up, like one that fails, used to forget the policy that was seen before, such as the
// time to live of a wait queue.
func TestWithPolicies_KeepsThoseSeenBefore(t *testing.T) {
	for name, fail := range map[string]func(end context.CancelFunc, w http.ResponseWriter){
		"given up": func(end context.CancelFunc, _ http.ResponseWriter) { end() },
		"fails":    func(_ context.CancelFunc, w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, end := context.WithCancel(t.Context())
			var answered atomic.Bool
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if answered.Swap(true) {
					fail(end, w)
					return
				}
				_, _ = io.WriteString(w, `{"policy": "p", "effective_policy_definition": {"message-ttl": 5000}}`)
			}))
			defer api.Close()
			m, err := newManagement(api.URL, &brokers.Config{URL: "amqp://localhost/", Logger: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			d := &design{management: m}
			_, _, err = d.withPolicies(ctx, Queue{Name: "wait"}, nil)
			require.NoError(t, err)
			_, _, err = d.withPolicies(ctx, Queue{Name: "wait"}, nil)
			require.Error(t, err)
			ttl, known := d.ttlOf("wait")
			require.True(t, known)
			require.EqualValues(t, 5000, ttl.Milliseconds())
		})
	}
}

// The management API is not asked again for a while after a failure. A check in that time used to say only this, and
// not why it had failed and what to do.
func TestLastPolicy_RepeatsTheCause(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer api.Close()
	m, err := newManagement(api.URL, &brokers.Config{URL: "amqp://localhost/", Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	for range 2 {
		_, err = m.lastPolicy(t.Context(), "orders")
		require.ErrorContains(t, err, "give the user the tag management")
	}
}
