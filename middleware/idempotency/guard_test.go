package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
	"github.com/redrive-go/redrive/middleware/idempotency"
)

func guard(t *testing.T, change ...func(*idempotency.Config)) *idempotency.Guard {
	t.Helper()
	cfg := idempotency.Config{Store: idempotency.NewMemory(), Consumer: "billing", Logger: slog.New(slog.DiscardHandler)}
	for _, c := range change {
		c(&cfg)
	}
	g, err := idempotency.New(cfg)
	require.NoError(t, err)
	return g
}

func order(id string) *message.Message { return message.NewMessage(id, []byte("payload of "+id)) }

var errBoom = errors.New("boom")

// endlessError wraps itself: errors.Is and errors.As never returned, and held the consumer forever. Its text has no end
// either, and overflowed the stack.
type endlessError struct{}

func (e endlessError) Error() string { return "boom: " + e.Unwrap().Error() }
func (e endlessError) Unwrap() error { return e }

func TestGuard_DuplicateDoesNotRunAndReturnsTheSameMessages(t *testing.T) {
	var runs int
	h := guard(t).Middleware(func(*message.Message) ([]*message.Message, error) {
		runs++
		out := message.NewMessage("invoice\xff", []byte{0, 1})
		out.Metadata.Set("k", "v")
		return []*message.Message{nil, out}, nil
	})
	for range 3 {
		out, err := h(order("1"))
		require.NoError(t, err)
		out = slices.DeleteFunc(out, func(m *message.Message) bool { return m == nil }) // as a pipeline does
		require.Len(t, out, 1)
		require.Equal(t, "invoice\xff", out[0].UUID)
		require.Equal(t, []byte{0, 1}, []byte(out[0].Payload))
		require.Equal(t, message.Metadata{"k": "v"}, out[0].Metadata)
	}
	require.Equal(t, 1, runs)
}

// Watermill's Deduplicator treats the redelivery of a failed message as a duplicate, and the message is lost.
func TestGuard_FailedAttemptIsNotDone(t *testing.T) {
	for name, fail := range map[string]func() error{
		"Error":  func() error { return errBoom },
		"Panic":  func() error { panic(errBoom) },
		"Itself": func() error { return endlessError{} },
	} {
		t.Run(name, func(t *testing.T) {
			runs := 0
			h := guard(t).Middleware(func(*message.Message) ([]*message.Message, error) {
				if runs++; runs < 3 {
					return nil, fail()
				}
				return nil, nil
			})
			for range 2 {
				func() {
					defer func() { _ = recover() }()
					_, err := h(order("1"))
					require.Regexp(t, "^boom$|endlessError that wraps itself", err.Error())
				}()
			}
			for range 2 {
				_, err := h(order("1"))
				require.NoError(t, err)
			}
			require.Equal(t, 3, runs)
		})
	}
}

func TestGuard_ConcurrentDeliveriesRunOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			runs, busy atomic.Int32
			all        sync.WaitGroup
		)
		h := guard(t, func(c *idempotency.Config) {
			c.Busy = func(err error, d time.Duration) error {
				busy.Add(1)
				var e *idempotency.BusyError
				require.ErrorAs(t, err, &e)
				require.True(t, e.Retryable())
				require.Positive(t, d)
				return err
			}
		}).Middleware(func(*message.Message) ([]*message.Message, error) {
			runs.Add(1)
			time.Sleep(time.Second) // virtual
			return nil, nil
		})
		for range 20 {
			all.Go(func() { _, _ = h(order("1")) })
		}
		all.Wait()
		require.EqualValues(t, 1, runs.Load())
		require.EqualValues(t, 19, busy.Load())
	})
}

// A handler may take as long as it likes: its lease is renewed, and no other worker starts.
func TestGuard_SlowHandlerKeepsItsClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := guard(t, func(c *idempotency.Config) { c.Lease = time.Second })
		started := make(chan struct{})
		var runs atomic.Int32
		h := g.Middleware(func(m *message.Message) ([]*message.Message, error) {
			if runs.Add(1) == 1 {
				close(started)
			}
			time.Sleep(10 * time.Second) // virtual
			return nil, m.Context().Err()
		})
		var first sync.WaitGroup
		first.Go(func() {
			_, err := h(order("1"))
			assert.NoError(t, err)
		})
		<-started
		for range 18 {
			time.Sleep(500 * time.Millisecond) // virtual
			synctest.Wait()
			_, err := h(order("1"))
			var busy *idempotency.BusyError
			require.ErrorAs(t, err, &busy)
		}
		first.Wait()
		_, err := h(order("1"))
		require.NoError(t, err)
		require.EqualValues(t, 1, runs.Load())
	})
}

// The owner of a claim crashed: its lease ends, and the next delivery runs.
func TestGuard_CrashedOwnerIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := idempotency.NewMemory()
		_, err := store.Claim(t.Context(), idempotency.Key{Consumer: "billing", MessageID: "1"}, 42, time.Minute)
		require.NoError(t, err)
		runs := 0
		h := guard(t, func(c *idempotency.Config) { c.Store = store }).Middleware(
			func(*message.Message) ([]*message.Message, error) { runs++; return nil, nil })

		_, err = h(order("1"))
		require.Error(t, err)
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		_, err = h(order("1"))
		require.NoError(t, err)
		require.Equal(t, 1, runs)
	})
}

// A worker that was killed keeps its messages claimed until the lease ends. Their redeliveries wait for that without
// using up attempts: with the default backoff they used to be dead after seven seconds.
func TestGuard_CrashedOwnersMessagesAreNotDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := idempotency.NewMemory()
		_, err := store.Claim(t.Context(), idempotency.Key{Consumer: "billing", MessageID: "1"}, 1, time.Minute)
		require.NoError(t, err)
		g := guard(t, func(c *idempotency.Config) { c.Store = store })
		begin := time.Now()
		_, err = alive(t, middleware.Config{})(g.Middleware(func(m *message.Message) ([]*message.Message, error) {
			attempt, _ := middleware.AttemptFrom(m.Context())
			require.Equal(t, 1, attempt.Number)
			require.Equal(t, time.Minute, time.Since(begin))
			return nil, nil
		}))(order("1"))
		require.NoError(t, err)
		require.Equal(t, time.Minute, time.Since(begin))
	})
}

// heeding is a store that, like a database, fails when the context has ended.
type heeding struct{ idempotency.Store }

func (s heeding) Complete(ctx context.Context, key idempotency.Key, owner int64, outcome []byte,
	d time.Duration,
) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return s.Store.Complete(ctx, key, owner, outcome, d)
}

func (s heeding) Release(ctx context.Context, key idempotency.Key, owner int64) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return s.Store.Release(ctx, key, owner)
}

// The process shuts down while a handler runs: finished work is marked, unfinished work is released, although the
// message's context has ended.
func TestGuard_SettlesAfterTheContextHasEnded(t *testing.T) {
	for name, want := range map[string]error{"Success": nil, "Failure": errBoom} {
		t.Run(name, func(t *testing.T) {
			runs, result := 0, want
			h := guard(t, func(c *idempotency.Config) { c.Store = heeding{c.Store} }).Middleware(
				func(*message.Message) ([]*message.Message, error) { runs++; return nil, result })
			m := order("1")
			ctx, cancel := context.WithCancel(t.Context())
			m.SetContext(ctx)
			cancel()
			_, err := h(m)
			require.ErrorIs(t, err, want)
			result = nil
			_, err = h(order("1"))
			require.NoError(t, err)
			require.Equal(t, map[string]int{"Success": 1, "Failure": 2}[name], runs)
		})
	}
}

// down is a store that fails until a moment.
type down struct {
	idempotency.Store
	until time.Time
	fail  func(ctx context.Context) error
}

func (s down) Claim(ctx context.Context, key idempotency.Key, owner int64, lease time.Duration) (idempotency.Record,
	error,
) {
	if time.Now().Before(s.until) {
		return idempotency.Record{}, s.fail(ctx)
	}
	return s.Store.Claim(ctx, key, owner, lease)
}

// sqlError has a code like the errors of pgx.
type sqlError string

func (e sqlError) Error() string    { return "the database says " + string(e) }
func (e sqlError) SQLState() string { return string(e) }

// While the store is down no handler runs, so no attempt is consumed: with the default backoff, an outage of seven
// seconds used to make a dead letter of every message that came, and one in which the database refused the account
// did so at once. A store that hangs used to keep its handler as long as it did.
func TestGuard_StoreThatIsDownKillsNoMessage(t *testing.T) {
	for name, fail := range map[string]func(ctx context.Context) error{
		"Unreachable": func(context.Context) error { return errBoom },
		"LockedOut":   func(context.Context) error { return sqlError("28P01") },
		"NoTable":     func(context.Context) error { return sqlError("42P01") },
		"Hangs":       func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ended, end := context.WithTimeout(t.Context(), 0)
				defer end()
				back := time.Now().Add(time.Hour)
				var logs strings.Builder
				g := guard(t, func(c *idempotency.Config) {
					c.Store, c.Logger = down{c.Store, back, fail}, slog.New(slog.NewTextHandler(&logs, nil))
				})
				runs := 0
				_, err := alive(t, middleware.Config{})(g.Middleware(func(m *message.Message) ([]*message.Message, error) {
					runs++
					attempt, _ := middleware.AttemptFrom(m.Context())
					require.Equal(t, 1, attempt.Number)
					require.WithinDuration(t, back, time.Now(), time.Minute)
					return nil, nil
				}))(order("1"))
				require.NoError(t, err)
				require.Equal(t, 1, runs)
				require.Contains(t, logs.String(), "level=WARN") // deferrals are logged for information only
				require.Contains(t, logs.String(), fail(ended).Error())
			})
		})
	}
}

// An attempt that is ended for want of a lease does not count, not even the last one: the other owner may succeed.
func TestGuard_LostLeaseKillsNoMessage(t *testing.T) {
	for name, lost := range map[string]func(m *message.Message) error{
		"NoticedByTheHandler": func(m *message.Message) error { <-m.Context().Done(); return m.Context().Err() },
		"NoticedByAClient": func(m *message.Message) error {
			<-m.Context().Done()
			return errors.New("rpc error: code = Canceled")
		},
		"NoticedAtTheCommit": func(*message.Message) error { return fmt.Errorf("complete: %w", idempotency.ErrLost) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := guard(t, func(c *idempotency.Config) { c.Store = failing{Store: c.Store, renew: idempotency.ErrLost} })
				runs := 0
				_, err := alive(t, middleware.Config{MaxAttempts: 1})(g.Middleware(
					func(m *message.Message) ([]*message.Message, error) {
						if runs++; runs == 1 {
							return nil, lost(m)
						}
						return nil, nil
					}))(order("1"))
				require.NoError(t, err)
				require.Equal(t, 2, runs)
			})
		})
	}
}

// A commit that fails after another owner has taken over the message does not count as an attempt: the other may
// succeed. Nor does one whose outcome the store cannot tell. It counts while the message is the handler's own, or free.
func TestGuard_FailedCommitOfALostLease(t *testing.T) {
	store, down := idempotency.NewMemory(), errors.New("connection refused")
	own := func(context.Context, *idempotency.Claim) error { return nil }
	for name, c := range map[string]struct {
		meanwhile func(context.Context, *idempotency.Claim) error
		renew     error // of the store
		want      error
	}{
		"Own": {meanwhile: own, want: errBoom},
		"Free": {
			meanwhile: func(ctx context.Context, c *idempotency.Claim) error { return store.Release(ctx, c.Key, c.Owner) },
			want:      errBoom,
		},
		"TakenOver": {
			meanwhile: func(ctx context.Context, c *idempotency.Claim) error { return takenOver(ctx, store, c) },
			want:      middleware.Defer(fmt.Errorf("%w: %w", idempotency.ErrLost, errBoom), 5*time.Second),
		},
		"TakenOverAndDone": {meanwhile: func(ctx context.Context, c *idempotency.Claim) error {
			return errors.Join(takenOver(ctx, store, c), store.Complete(ctx, c.Key, c.Owner+1, nil, time.Hour))
		}},
		"Unknown": {
			meanwhile: own, renew: down, want: middleware.Defer(fmt.Errorf("%w: %w", down, errBoom), 5*time.Second),
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := guard(t, func(cfg *idempotency.Config) { cfg.Store = failing{Store: store, renew: c.renew} })
				_, err := g.Middleware(func(m *message.Message) ([]*message.Message, error) {
					claim, _ := idempotency.ClaimFrom(m.Context())
					claim.MarkCompleted(0)
					require.NoError(t, c.meanwhile(m.Context(), claim))
					return nil, errBoom
				})(order(name))
				require.Equal(t, c.want, err)
			})
		})
	}
}

// takenOver gives a claim to the next owner.
func takenOver(ctx context.Context, store idempotency.Store, c *idempotency.Claim) error {
	err := store.Release(ctx, c.Key, c.Owner)
	if err == nil {
		_, err = store.Claim(ctx, c.Key, c.Owner+1, time.Hour)
	}
	return err
}

// What the handler knows about its message holds, even if the lease is lost meanwhile.
func TestGuard_LostLeaseKeepsMarks(t *testing.T) {
	for _, mark := range []func(error) error{middleware.Permanent, middleware.Skip} {
		synctest.Test(t, func(t *testing.T) {
			g := guard(t, func(c *idempotency.Config) { c.Store = failing{Store: c.Store, renew: idempotency.ErrLost} })
			want := mark(errors.New("unknown customer"))
			_, err := g.Middleware(func(m *message.Message) ([]*message.Message, error) {
				<-m.Context().Done()
				return nil, want
			})(order("1"))
			require.Equal(t, want, err)
		})
	}
}

// alive is a pipeline with which no message may die.
func alive(t *testing.T, cfg middleware.Config) message.HandlerMiddleware {
	t.Helper()
	cfg.Rescheduler, cfg.Logger = middleware.HoldInMemory, slog.New(slog.DiscardHandler)
	cfg.DeadLetters = middleware.DeadLetterFunc(func(_ context.Context, d *envelope.DeadLetter) error {
		t.Errorf("%s: %s", d.Reason, d.Err.Message)
		return nil
	})
	pipeline, err := middleware.New(cfg)
	require.NoError(t, err)
	return pipeline.Middleware
}

// failing is a store that cannot be reached.
type failing struct {
	idempotency.Store
	renew, complete error
}

func (s failing) Renew(ctx context.Context, key idempotency.Key, owner int64, lease time.Duration) error {
	if s.renew != nil {
		return s.renew
	}
	return s.Store.Renew(ctx, key, owner, lease)
}

func (s failing) Complete(ctx context.Context, key idempotency.Key, owner int64, outcome []byte,
	d time.Duration,
) error {
	if s.complete != nil {
		return s.complete
	}
	return s.Store.Complete(ctx, key, owner, outcome, d)
}

// The store cannot be reached for so long that another worker may have the lease: the handler's context ends.
func TestGuard_LostLeaseCancelsTheHandler(t *testing.T) {
	for name, fault := range map[string]error{
		"Lost": idempotency.ErrLost, "Unreachable": errBoom, "Itself": endlessError{},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := guard(t, func(c *idempotency.Config) {
					c.Lease = 9 * time.Second
					c.Store = failing{Store: c.Store, renew: fault}
				})
				began := time.Now()
				_, err := g.Middleware(func(m *message.Message) ([]*message.Message, error) {
					<-m.Context().Done()
					return nil, context.Cause(m.Context())
				})(order("1"))
				require.ErrorIs(t, err, idempotency.ErrLost)
				require.LessOrEqual(t, time.Since(began), 9*time.Second)
			})
		})
	}
}

// The effect has happened: an error would only make it happen again.
func TestGuard_MarkThatFailsDoesNotFailTheMessage(t *testing.T) {
	for _, fault := range []error{errBoom, endlessError{}} {
		synctest.Test(t, func(t *testing.T) {
			g := guard(t, func(c *idempotency.Config) { c.Store = failing{Store: c.Store, complete: fault} })
			_, err := g.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })(order("1"))
			require.NoError(t, err)
		})
	}
}

func TestGuard_KeysAreOfConsumerAndMessage(t *testing.T) {
	store := idempotency.NewMemory()
	runs := map[string]int{}
	for _, consumer := range []string{"billing", "mail"} {
		g := guard(t, func(c *idempotency.Config) { c.Store, c.Consumer = store, consumer })
		h := g.Middleware(func(m *message.Message) ([]*message.Message, error) {
			runs[consumer+m.UUID]++
			return nil, nil
		})
		for _, id := range []string{"1", "2", "1", "2"} {
			_, err := h(order(id))
			require.NoError(t, err)
		}
	}
	require.Equal(t, map[string]int{"billing1": 1, "billing2": 1, "mail1": 1, "mail2": 1}, runs)
}

func TestGuard_MessageWithoutIDRuns(t *testing.T) {
	runs := 0
	h := guard(t).Middleware(func(*message.Message) ([]*message.Message, error) { runs++; return nil, nil })
	for range 2 {
		_, err := h(order(""))
		require.NoError(t, err)
	}
	require.Equal(t, 2, runs)
}

// The handler's own context is restored, and the claim's ends.
func TestGuard_RestoresTheContext(t *testing.T) {
	var ended func() error
	m := order("1")
	before := m.Context()
	_, err := guard(t).Middleware(func(m *message.Message) ([]*message.Message, error) {
		ended = m.Context().Err
		claim, ok := idempotency.ClaimFrom(m.Context())
		require.True(t, ok)
		require.Equal(t, idempotency.Key{Consumer: "billing", MessageID: "1"}, claim.Key)
		return nil, nil
	})(m)
	require.NoError(t, err)
	require.Equal(t, before, m.Context())
	require.Error(t, ended())
}

func TestNew_ReportsEveryFault(t *testing.T) {
	_, err := idempotency.New(idempotency.Config{Lease: -1, Retention: -1})
	require.ErrorContains(t, err, "Store is required")
	require.ErrorContains(t, err, "Lease")
	require.ErrorContains(t, err, "Retention")
}

// A topic that was recreated, a mirror, a second cluster: positions start over, and so do the ids derived from them.
func TestGuard_AnotherMessageWithTheSameIDRuns(t *testing.T) {
	var ran []string
	h := guard(t).Middleware(func(m *message.Message) ([]*message.Message, error) {
		ran = append(ran, string(m.Payload))
		return []*message.Message{message.NewMessage("of "+string(m.Payload), nil)}, nil
	})
	for range 2 {
		for _, payload := range []string{"first", "second", "third"} {
			out, err := h(message.NewMessage("orders/0/17", []byte(payload)))
			require.NoError(t, err)
			require.Len(t, out, 1)
			require.Equal(t, "of "+payload, out[0].UUID)
		}
	}
	require.Equal(t, []string{"first", "second", "third"}, ran)
}

// The retry count of a structured envelope is in its body, so a retry has other bytes and is the same message.
func TestGuard_ARetryIsTheSameMessage(t *testing.T) {
	runs := 0
	h := guard(t).Middleware(func(*message.Message) ([]*message.Message, error) { runs++; return nil, nil })
	e, err := envelope.New("shop", "orders", map[string]int{"order": 7}, nil, envelope.InMode(envelope.Structured))
	require.NoError(t, err)
	for _, e := range []envelope.Envelope{e, e.WithIncrementedRetry()} {
		_, err = h(e.Message())
		require.NoError(t, err)
	}
	require.Equal(t, 1, runs)
}

// The effect of a message whose outcome is damaged, or was written by a later version, has happened: it is neither
// repeated nor a dead letter, and the message ends once the outcome can be read.
func TestGuard_UnreadableOutcomeKillsNoMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, key := idempotency.NewMemory(), idempotency.Key{Consumer: "billing", MessageID: "1"}
		classifier, err := middleware.NewClassifier()
		require.NoError(t, err)
		runs := 0
		h := guard(t, func(c *idempotency.Config) { c.Store = store }).Middleware(
			func(*message.Message) ([]*message.Message, error) {
				runs++
				return []*message.Message{order("invoice")}, nil
			})
		_, err = h(order("1"))
		require.NoError(t, err)
		record, err := store.Claim(t.Context(), key, 1, time.Minute)
		require.NoError(t, err)
		for _, damaged := range [][]byte{record.Outcome[:20], append(record.Outcome[:16:16], "not gob"...)} {
			broken := guard(t, func(c *idempotency.Config) { c.Store = doneWith{store, damaged} }).Middleware(nil)
			out, err := broken(order("1"))
			require.Empty(t, out)
			require.ErrorContains(t, err, "decode the produced messages")
			require.Equal(t, middleware.KindDefer, classifier.Classify(err).Kind)
		}
		out, err := h(order("1"))
		require.NoError(t, err)
		require.Len(t, out, 1)
		require.Equal(t, 1, runs)
	})
}

// doneWith is a store in which every message is done.
type doneWith struct {
	idempotency.Store
	outcome []byte
}

func (s doneWith) Claim(context.Context, idempotency.Key, int64, time.Duration) (idempotency.Record, error) {
	return idempotency.Record{State: idempotency.Done, Outcome: s.outcome}, nil
}
