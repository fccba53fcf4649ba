package docstest

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	theirs "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/middleware"
)

// fate is what happens within an hour to a message whose handler always fails.
type fate struct {
	runs, dead, poisoned int
	refused              error
}

func (f fate) String() string {
	switch {
	case errors.Is(f.refused, middleware.ErrMiswired):
		return "refused at start"
	case f.dead == 0 && f.poisoned == 0:
		return fmt.Sprintf("%d runs, **lost**", f.runs)
	case f.poisoned > 0:
		return fmt.Sprintf("%d runs, %d poisoned, %d dead", f.runs, f.poisoned, f.dead)
	default:
		return fmt.Sprintf("%d runs, %d dead", f.runs, f.dead)
	}
}

var errAlways = errors.New("it always fails")

// seen is a repository for Deduplicator; the default one starts a goroutine that never ends.
type seen map[string]bool

func (s seen) IsDuplicate(_ context.Context, key string) (bool, error) {
	duplicate := s[key]
	s[key] = true
	return duplicate, nil
}

// composition is a middleware that Watermill v1.5 ships.
type composition struct {
	name string
	make func(t *testing.T, poison message.Publisher) message.HandlerMiddleware
	note string
}

func shipped() []composition {
	plain := func(m message.HandlerMiddleware) func(*testing.T, message.Publisher) message.HandlerMiddleware {
		return func(*testing.T, message.Publisher) message.HandlerMiddleware { return m }
	}
	return []composition{
		{"none", plain(func(h message.HandlerFunc) message.HandlerFunc { return h }), ""},
		{"CircuitBreaker", func(*testing.T, message.Publisher) message.HandlerMiddleware {
			settings := reflect.New(reflect.TypeOf(theirs.NewCircuitBreaker).In(0)).Elem()
			made := reflect.ValueOf(theirs.NewCircuitBreaker).Call([]reflect.Value{settings})[0]
			return made.Interface().(theirs.CircuitBreaker).Middleware
		}, "outside it sees no failures; inside, an open circuit defers messages, but a half-open one costs those that it " +
			"refuses an attempt: use `Config.Breaker`"},
		{"CorrelationID", plain(theirs.CorrelationID), ""},
		{"Deduplicator", func(*testing.T, message.Publisher) message.HandlerMiddleware {
			return (&theirs.Deduplicator{Repository: seen{}}).Middleware
		}, "it treats a retry as a duplicate, and loses it: use package `idempotency`, inside"},
		{"DelayOnError", func(*testing.T, message.Publisher) message.HandlerMiddleware {
			return (&theirs.DelayOnError{InitialInterval: time.Second, Multiplier: 2}).Middleware
		}, "outside it sees no failures; inside it has no effect: the backoff is the pipeline's"},
		{"Duplicator", plain(theirs.Duplicator), "outside each run has its own retry, so they double; for tests"},
		{"IgnoreErrors", func(*testing.T, message.Publisher) message.HandlerMiddleware {
			return theirs.NewIgnoreErrors([]error{errAlways}).Middleware
		}, "it acks messages whose error it names, without a trace: use a `Rule` that skips, which logs and counts"},
		{
			"InstantAck", plain(theirs.InstantAck),
			"it acks before the outcome is known: a crash or an unpublishable retry loses the message",
		},
		{"a second Pipeline", func(t *testing.T, _ message.Publisher) message.HandlerMiddleware {
			t.Helper()
			broker, err := memory.New(brokers.Config{})
			require.NoError(t, err)
			second, err := middleware.New(middleware.Config{Rescheduler: broker, DeadLetters: broker})
			require.NoError(t, err)
			return second.Middleware
		}, "every failure would be a success for the outer one: use `Config.Handlers` for a handler that differs"},
		{"PoisonQueue", func(t *testing.T, poison message.Publisher) message.HandlerMiddleware {
			t.Helper()
			m, err := theirs.PoisonQueue(poison, "poison")
			require.NoError(t, err)
			return m
		}, "outside it sees no failures; inside it takes the first failure, and nothing is retried"},
		{"PoisonQueueWithFilter", func(t *testing.T, poison message.Publisher) message.HandlerMiddleware {
			t.Helper()
			m, err := theirs.PoisonQueueWithFilter(poison, "poison", func(error) bool { return false })
			require.NoError(t, err)
			return m
		}, "with a filter that matches no error; those that match behave as with PoisonQueue"},
		{
			"RandomFail", plain(theirs.RandomFail(0)),
			"with probability 0; a failure outside is nacked, one inside is an attempt",
		},
		{"RandomPanic", plain(theirs.RandomPanic(0)), "likewise"},
		{"Recoverer", plain(theirs.Recoverer), "not needed: the pipeline recovers"},
		{
			"Retry", plain(theirs.Retry{MaxRetries: 2, InitialInterval: time.Second}.Middleware),
			"outside it sees no failures; inside each attempt is three runs, which hold up later messages",
		},
		{"Throttle", plain(nil), "inside it counts runs; while it waits it ignores shutdown"},
		{"Timeout", plain(theirs.Timeout(time.Minute)), "not needed: `Config.Timeout`"},
	}
}

// live runs a message through a router for an hour. It always fails: its handler, or if there is a publisher for the
// results, their publishing.
func (c composition) live(t *testing.T, inside bool, results message.Publisher) (f fate) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		broker, err := memory.New(brokers.Config{})
		require.NoError(t, err)
		pipeline, err := middleware.New(middleware.Config{
			Rescheduler: broker, DeadLetters: broker, Logger: slog.New(slog.DiscardHandler),
			MaxAttempts: 3, Backoff: middleware.Constant(time.Minute),
		})
		require.NoError(t, err)
		router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
		require.NoError(t, err)
		other := c.make(t, broker.Publisher())
		if c.name == "Throttle" {
			other = theirs.NewThrottle(10, time.Second).Middleware
		}
		if inside {
			router.AddMiddleware(pipeline.Middleware, other)
		} else {
			router.AddMiddleware(other, pipeline.Middleware)
		}
		router.AddPlugin(pipeline.Plugin)
		var runs atomic.Int32
		if results == nil {
			router.AddConsumerHandler("handler", "orders", broker.Subscriber(), func(*message.Message) error {
				runs.Add(1)
				return errAlways
			})
		} else {
			router.AddHandler("handler", "orders", broker.Subscriber(), "results", results,
				func(*message.Message) ([]*message.Message, error) {
					runs.Add(1)
					return message.Messages{message.NewMessage("result", nil)}, nil
				})
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			f.refused = router.Run(ctx)
		}()
		require.NoError(t, broker.Publisher().Publish("orders", message.NewMessage("1", []byte("1"))))
		time.Sleep(time.Hour) // virtual
		synctest.Wait()
		f.runs, f.dead, f.poisoned = int(runs.Load()), len(broker.Peek("orders_dlq", "")), len(broker.Peek("poison", ""))
		cancel()
		<-ended
		require.NoError(t, broker.Close())
	})
	return f
}

// The table in docs/composition.md shows what each of Watermill's middlewares does to a failing message: go test
// ./internal/docstest -update writes it.
func TestComposition_Table(t *testing.T) {
	var table strings.Builder
	table.WriteString("| | outside | inside | |\n|---|---|---|---|\n")
	for _, c := range shipped() {
		outside, inside := c.live(t, false, nil), c.live(t, true, nil)
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", c.name, outside, inside, c.note)
		require.NotContains(t, outside.String()+inside.String(), "lost", c.name)
	}
	path := filepath.Join(root, "docs", "composition.md")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	const begin, end = "<!-- table -->\n\n", "\n<!-- end of table -->"
	before, rest, found := strings.Cut(string(text), begin)
	require.True(t, found)
	_, after, found := strings.Cut(rest, end)
	require.True(t, found)
	want := before + begin + table.String() + end + after
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o600))
		return
	}
	require.Equal(t, want, string(text), "update it: go test ./internal/docstest -update")
}

// unwritable publishes nothing.
type unwritable struct{}

func (unwritable) Publish(string, ...*message.Message) error { return errors.New("no such topic") }
func (unwritable) Close() error                              { return nil }

// A middleware outside that ends its context when it returns, as Timeout does, made every failure to publish the
// results look like a shutdown: the message was returned without being counted, 568 times in the hour.
func TestComposition_UnpublishableResults(t *testing.T) {
	cancelling := composition{name: "canceller", make: func(*testing.T, message.Publisher) message.HandlerMiddleware {
		return func(next message.HandlerFunc) message.HandlerFunc {
			return func(m *message.Message) ([]*message.Message, error) {
				ctx, cancel := context.WithCancel(m.Context())
				defer cancel()
				m.SetContext(ctx)
				return next(m)
			}
		}
	}}
	for _, c := range append(shipped(), cancelling) {
		want := fate{runs: 3, dead: 1}
		if c.name == "Duplicator" {
			want = fate{runs: 14, dead: 8} // as in the table
		}
		if f := c.live(t, false, unwritable{}); f.refused == nil {
			require.Equal(t, want, f, c.name)
		}
	}
}

// Everything that Watermill's middleware package exports has a row or is known not to be a middleware, so that a new
// one is noticed.
func TestComposition_AllAreShown(t *testing.T) {
	shown := map[string]bool{
		"SetCorrelationID": true, "MessageCorrelationID": true, // of CorrelationID
		"ExpiringKeyRepository": true, "MessageHasher": true, // parts of Deduplicator
		"NewMapExpiringKeyRepository": true, "NewMessageHasherAdler32": true, "NewMessageHasherSHA256": true,
		"NewMessageHasherFromMetadataField": true,
		"RecoveredPanicError":               true, "RetryParams": true,
	}
	for _, c := range shipped() {
		shown[c.name], shown["New"+c.name] = true, true
	}
	const pkg = "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	dir := filepath.Dir(sourceOf(t, pkg, "retry.go"))
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	files, set := []*ast.File{}, token.NewFileSet()
	for _, path := range paths {
		if !strings.HasSuffix(path, "_test.go") {
			file, err := parser.ParseFile(set, path, nil, parser.ParseComments)
			require.NoError(t, err)
			files = append(files, file)
		}
	}
	exported, err := doc.NewFromFiles(set, files, pkg)
	require.NoError(t, err)
	names := []string{}
	for _, f := range exported.Funcs {
		names = append(names, f.Name)
	}
	for _, typ := range exported.Types {
		names = append(names, typ.Name)
		for _, f := range typ.Funcs {
			names = append(names, f.Name)
		}
	}
	require.Greater(t, len(names), len(shipped()))
	for _, name := range names {
		require.True(t, shown[name], "%s has no row", name)
	}
}

func sourceOf(t *testing.T, pkg, file string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", pkg).Output()
	require.NoError(t, err)
	return filepath.Join(strings.TrimSpace(string(out)), file)
}
