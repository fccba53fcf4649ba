package dlq_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
)

var (
	lifeLetters = flag.Int("life", 20, "letters of TestLife, which has ten steps for each")
	lifeSeed    = flag.Int("life.seed", 1, "of the steps")
)

// lived is the expected state of a letter: the payload of each revision, and whether it is in the archive.
type lived struct {
	id        int64
	payloads  []string
	archived  bool
	delivered *message.Message // its last redrive, without an outcome yet
}

// lives are letters that go through everything that can happen to them.
type lives struct {
	t       *testing.T
	store   *sqlstore.Store
	manager *dlq.Manager
	sent    *outbox
	letters []*lived
	steps   int
	done    map[string]int
}

// step is a random action on a random letter.
type step struct {
	What   string
	Letter int
}

// Letters are edited, redriven, die again, are resolved, discarded, parked, restored, released, purged, unarchived,
// exported and imported, in random order: the kept numbers match the rows, and every byte of every revision is there.
// -args -life=17000 is the full run.
func TestLife(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, sent := newStore(t), &outbox{}
		manager, err := dlq.NewManager(dlq.ManagerConfig{Store: store, Redriver: sent, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		l := &lives{t: t, store: store, manager: manager, sent: sent, done: map[string]int{}}
		for n := range *lifeLetters {
			d := death(n)
			l.letters = append(l.letters, &lived{id: stored(t, store, d), payloads: []string{string(d.Message.Payload)}})
		}
		steps := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) step {
			return step{
				rapid.SampledFrom([]string{
					"edit", "redrive", "redrive", "redrive", "die", "die", "die otherwise", "succeed", "resolve", "discard", "park",
					"restore", "restore",
					"release", "unarchive", "unarchive",
				}).Draw(r, "what"),
				rapid.IntRange(0, len(l.letters)-1).Draw(r, "letter"),
			}
		}), 10**lifeLetters, 10**lifeLetters).Example(*lifeSeed)
		for n, s := range steps {
			time.Sleep(time.Minute) // virtual
			synctest.Wait()
			l.do(s)
			if n%(len(steps)/16) == 0 {
				l.do(step{What: "purge"})
			}
			if n%(len(steps)/4) == 0 {
				l.do(step{What: "move"})
				l.check()
			}
		}
		t.Log(l.done)
		for what, n := range l.done {
			require.Positive(t, n, what)
		}
		l.check()
		l.move()
		for _, x := range l.letters {
			if x.archived {
				l.unarchive(x)
			}
		}
		l.check()
		l.move()
	})
}

func (l *lives) do(s step) {
	l.steps++
	x := l.letters[s.Letter]
	by := dlq.By{Actor: "ana", Note: "her step"}
	var err error
	switch s.What {
	case "edit":
		payload := fmt.Sprintf(`{"edit":%d}`, l.steps)
		if _, _, err = l.manager.Edit(l.t.Context(), x.id, dlq.Edit{Payload: []byte(payload)}, by); err == nil {
			x.payloads = append(x.payloads, payload)
		}
	case "redrive":
		if _, err = l.manager.Redrive(l.t.Context(), x.id, by); err == nil {
			x.delivered = l.sent.sent[len(l.sent.sent)-1]
			require.Equal(l.t, x.payloads[len(x.payloads)-1], string(x.delivered.Payload))
		}
	case "die", "die otherwise", "succeed":
		if x.delivered == nil || x.archived {
			return
		}
		l.outcome(x, s.What)
	case "resolve":
		_, err = l.manager.Resolve(l.t.Context(), x.id, by)
	case "discard":
		_, err = l.manager.Discard(l.t.Context(), x.id, by)
	case "park":
		_, err = l.manager.Park(l.t.Context(), x.id, by)
	case "restore":
		_, err = l.manager.Restore(l.t.Context(), x.id, by)
	case "release":
		_, err = l.manager.Release(l.t.Context(), x.id, by)
	case "purge":
		l.purge()
	case "unarchive":
		if !x.archived {
			return
		}
		l.unarchive(x)
	case "move":
		l.move()
	}
	switch {
	case err == nil:
		l.done[s.What]++
	case x.archived:
		require.ErrorIs(l.t, err, dlq.ErrNotFound, s.What)
	default:
		require.ErrorIs(l.t, err, dlq.ErrConflict, s.What)
	}
}

// outcome reports the result of a redriven message.
func (l *lives) outcome(x *lived, what string) {
	m := x.delivered
	x.delivered = nil
	origin := death(0).Origin
	if what == "succeed" {
		letters, _ := newLetters(l.t, unclosedStore{l.store}, l.t.TempDir())
		err := letters.Redriven(l.t.Context(), envelope.RedrivenBy(m, origin, time.Now()))
		require.NoError(l.t, errors.Join(err, letters.Close()))
		return
	}
	d := death(0)
	d.Message, d.Origin, d.At = m.Copy(), origin, time.Now()
	d.Err.Message = fmt.Sprintf("order %d: still closed", l.steps)
	if what == "die otherwise" {
		d.Message.Payload = fmt.Appendf(nil, "\x00died %d\xff", l.steps)
	}
	receipts, err := l.store.Put(l.t.Context(), dlq.NewEntry(d))
	require.NoError(l.t, err)
	require.Equal(l.t, x.id, receipts[0].ID)
	if receipts[0].Result == driver.DiedAgain && string(d.Message.Payload) != x.payloads[len(x.payloads)-1] {
		x.payloads = append(x.payloads, string(d.Message.Payload))
	}
}

// unclosedStore is a store that is closed by its test.
type unclosedStore struct{ *sqlstore.Store }

func (unclosedStore) Close() error { return nil }

func (l *lives) purge() {
	n, err := l.manager.Purge(l.t.Context(), dlq.Purge{
		Statuses: []dlq.Status{dlq.Resolved, dlq.Discarded}, ClosedBefore: time.Now().Add(-time.Hour), Actor: "cron",
	})
	require.NoError(l.t, err)
	for _, x := range l.letters {
		if x.archived {
			continue
		}
		if _, err := l.store.Get(l.t.Context(), x.id); errors.Is(err, dlq.ErrNotFound) {
			x.archived = true
			n--
		}
	}
	require.Zero(l.t, n, "each is in the archive once")
}

func (l *lives) unarchive(x *lived) {
	back, err := l.manager.Unarchive(l.t.Context(), dlq.By{Actor: "ana", Note: "asked for"}, x.id)
	require.NoError(l.t, err)
	require.Equal(l.t, []int64{x.id}, back)
	x.archived = false
}

// move exports everything into a new store, which must then be equal.
func (l *lives) move() {
	var file bytes.Buffer
	written, err := l.manager.Export(l.t.Context(), &file, dlq.Filter{})
	require.NoError(l.t, err)
	target := newStore(l.t)
	got, err := operate(l.t, target, nil).Import(l.t.Context(), strings.NewReader(file.String()), ana)
	require.NoError(l.t, err)
	require.Equal(l.t, dlq.Imported{Stored: written}, got)
	if *lifeLetters <= driver.MaxPage {
		require.Equal(l.t, everything(l.t, l.store), everything(l.t, target))
	}
	require.Equal(l.t, l.kept(l.store).Counts, l.kept(target).Counts)
}

func (l *lives) kept(s *sqlstore.Store) driver.Stats {
	stats, err := s.Stats(l.t.Context(), dlq.StatsQuery{
		Since:     time.Now().Add(-10 * 365 * 24 * time.Hour),
		TopCauses: driver.MaxPage,
	})
	require.NoError(l.t, err)
	return stats
}

// deaths returns the deaths after a redrive in the audit log, by the hour.
func (l *lives) deaths() map[time.Time]int64 {
	deaths := map[time.Time]int64{}
	page := dlq.Page{Limit: driver.MaxPage}
	for more := true; more; more = page.After != "" {
		records, next, err := l.store.Audit(l.t.Context(), dlq.AuditFilter{Action: driver.ActionDie}, page)
		require.NoError(l.t, err)
		for _, r := range records {
			deaths[r.At.Truncate(time.Hour)]++
		}
		page.After = next
	}
	return deaths
}

// check compares the store with the expected state, and the kept numbers with the rows.
func (l *lives) check() {
	kept := l.kept(l.store)
	require.NoError(l.t, l.store.Recount(l.t.Context()))
	require.Equal(l.t, l.kept(l.store), kept)
	again := map[time.Time]int64{}
	for _, h := range kept.Hourly {
		if h.DiedAgain != 0 {
			again[h.Hour] = h.DiedAgain
		}
	}
	require.Equal(l.t, l.deaths(), again)
	live := int64(0)
	for _, x := range l.letters {
		if x.archived {
			continue
		}
		live++
		e, err := l.store.Get(l.t.Context(), x.id)
		require.NoError(l.t, err)
		require.Equal(l.t, len(x.payloads)-1, e.Revision)
		for revision, want := range x.payloads {
			body, err := l.store.Body(l.t.Context(), x.id, revision)
			require.NoError(l.t, err)
			require.Equal(l.t, want, string(body.Payload))
		}
	}
	require.Equal(l.t, live, kept.Counts.Total())
}
