package sqlqueue

import (
	"maps"
	"net/url"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// FuzzHeaders: what is written is read again, and nothing that a column may hold makes reading panic.
func FuzzHeaders(f *testing.F) {
	for _, seed := range [][3]string{
		{"x-retry-count", "1", `{"a":"b"}`},
		{"", "", ""},
		{"\xff", "\x00", `{"$binary":"AAAA"}`},
		{"$binary", "x", `{"a":1}`},
		{`quote"\`, "\u2028\n", `{"a":"b",}`},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, key, value, foreign string) {
		headers := message.Metadata{key: value, "other": "value"}
		got := message.Metadata{}
		require.NoError(t, decodeHeaders(encodeHeaders(headers), got))
		require.True(t, maps.Equal(headers, got), "%q became %q", headers, got)
		_ = decodeHeaders(foreign, message.Metadata{}) // any text may be in the column
	})
}

func TestSourceOf(t *testing.T) {
	for raw, want := range map[string]string{
		"postgres://u:p@h:1/d?sslmode=disable":                   "postgres://u:p@h:1/d?sslmode=disable",
		"mysql://u:p%40%2F:@h/d?tls=true":                        "u:p@/:@tcp(h:3306)/d?tls=true",
		"mariadb://root@[::1]:3307/d":                            "root@tcp([::1]:3307)/d",
		"mysql://u@h/d?socket=%2Frun%2Fm.sock":                   "u@unix(/run/m.sock)/d",
		"sqlite:///var/q.db":                                     "file:/var/q.db?_txlock=immediate",
		"sqlite://q.db?_pragma=synchronous(off)":                 "file:q.db?_pragma=synchronous%28off%29&_txlock=immediate",
		"sqlite://dir/q%3F.db":                                   "file:dir/q%3F.db?_txlock=immediate",
		"postgresql://h/d":                                       "postgresql://h/d",
		"mysql://u@h:3306/d?time_zone=%27%2B09%3A00%27&x=%26%20": "u@tcp(h:3306)/d?time_zone=%27%2B09%3A00%27&x=%26+",
	} {
		u, err := url.Parse(raw)
		require.NoError(t, err)
		s, err := sourceOf(u)
		require.NoError(t, err)
		require.Equal(t, want, s.dsn)
	}
}

// What the URL says about SQLite is not said over again.
func TestSourceOf_PragmasOfTheURLWin(t *testing.T) {
	u, err := url.Parse("sqlite://q.db?_pragma=synchronous(off)&_pragma=busy_timeout=1")
	require.NoError(t, err)
	s, err := sourceOf(u)
	require.NoError(t, err)
	require.Equal(t, []string{"PRAGMA journal_mode = WAL"}, s.pragmas)
}

// Processes that start together all turn the journal of a new file into a write-ahead log. One that meets another there waits, also
// when the driver runs pragmas of the URL before there is a busy_timeout.
func TestSource_OpenedTogether(t *testing.T) {
	t.Parallel()
	for range 40 {
		u := &url.URL{Scheme: "sqlite", Path: filepath.Join(t.TempDir(), "queue.db"), RawQuery: "_pragma=synchronous(off)"}
		s, err := sourceOf(u)
		require.NoError(t, err)
		var opening sync.WaitGroup
		start := make(chan struct{})
		for range 8 {
			opening.Go(func() {
				<-start
				db, err := s.open("", 1)
				if assert.NoError(t, err) {
					assert.NoError(t, db.PingContext(t.Context()))
					assert.NoError(t, db.Close())
				}
			})
		}
		close(start)
		opening.Wait()
	}
}

// What is added while a flush runs is flushed together.
func TestBatcher_GathersDuringAFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var batches [][]int
		b := &batcher[int]{max: 3}
		b.flush = func(batch []int) {
			batches = append(batches, batch)
			time.Sleep(time.Second) // virtual: the database
		}
		b.add(1)
		synctest.Wait()
		for i := 2; i <= 6; i++ {
			b.add(i)
		}
		time.Sleep(10 * time.Second) // virtual
		synctest.Wait()
		require.Equal(t, [][]int{{1}, {2, 3, 4}, {5, 6}}, batches)
	})
}

// The first item goes at once; those that follow wait for company, but not for ever.
func TestBatcher_Lingers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at []time.Duration
		b := &batcher[int]{max: 3, linger: time.Second}
		first := make(chan struct{})
		b.flush = func([]int) {
			at = append(at, time.Since(began))
			if len(at) == 1 {
				<-first
			}
		}
		b.add(1)
		synctest.Wait()
		b.add(2)
		close(first)
		time.Sleep(5 * time.Second) // virtual
		synctest.Wait()
		require.Equal(t, []time.Duration{0, time.Second}, at)
	})
}

func TestAlarm_RingsAtTheEarliestTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		a := newAlarm()
		defer a.stop()
		a.set(5 * time.Second)
		a.set(2 * time.Second)
		a.set(9 * time.Second)
		<-a.c
		require.Equal(t, 2*time.Second, time.Since(began))
		a.set(time.Second)
		a.set(0)
		<-a.c
		require.Equal(t, 2*time.Second, time.Since(began))
	})
}

func TestIdleness_LooksLessAndLessOften(t *testing.T) {
	i := idleness{longest: 20 * time.Millisecond}
	var pauses []time.Duration
	for range 6 {
		pauses = append(pauses, i.next(false))
	}
	ms := time.Millisecond
	require.Equal(t, []time.Duration{2 * ms, 4 * ms, 8 * ms, 16 * ms, 20 * ms, 20 * ms}, pauses)
	require.Equal(t, 40*ms, i.next(true), "listening, it is in no hurry")
	for range 100 {
		i.next(true)
	}
	require.Equal(t, time.Second, i.next(true), "but it looks: a notification may be lost")
	i.reset()
	require.Equal(t, 2*ms, i.next(false))
}

// A consumer leases what it finishes in 50 ms, and no more.
func TestPace_LooksAheadByTime(t *testing.T) {
	now := time.Now()
	var p pace
	require.Zero(t, p.update(0, now))
	require.Equal(t, 500, p.update(1000, now.Add(100*time.Millisecond)))
	require.Equal(t, 500, p.update(1001, now.Add(100*time.Millisecond)), "too short to tell")
	require.Zero(t, p.update(1002, now.Add(10*time.Second)))
}

func TestLowWater_ReadsFromTheBeginningNowAndThen(t *testing.T) {
	var l lowWater
	now := time.Now()
	require.Zero(t, l.from(now))
	due := int64(10_000_000)
	l.update([]claimed{{dueAt: due + 5}, {dueAt: due}}, true, now, now.Add(time.Millisecond))
	mark := due - lowWaterOverlap.Microseconds()
	require.Equal(t, mark, l.from(now.Add(50*time.Millisecond)))
	require.Zero(t, l.from(now.Add(time.Second)), "something may have turned up before the mark")

	// Reading it all took 200 ms: it is not done again for two seconds.
	l.update([]claimed{{dueAt: due}}, true, now, now.Add(200*time.Millisecond))
	require.Equal(t, mark, l.from(now.Add(2*time.Second)))
	require.Zero(t, l.from(now.Add(3*time.Second)))

	l.update([]claimed{{dueAt: due}}, false, now, now)
	require.Zero(t, l.from(now), "the end of what is due was seen")
}

// A burst of publishes notifies at its beginning and at its end.
func TestNotices_ShareOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			mu   sync.Mutex
			sent []time.Duration
		)
		n := newNotices(func(_ string, delay time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			sent = append(sent, delay)
		})
		require.True(t, n.publish("a"))
		for _, delay := range []time.Duration{time.Hour, time.Minute} {
			require.False(t, n.publish("a"))
			n.owe("a", delay)
		}
		require.True(t, n.publish("b"), "topics do not wait for each other")
		n.close()
		require.Equal(t, []time.Duration{time.Minute}, sent)
		time.Sleep(noticeGap) // virtual
		require.True(t, n.publish("a"))
	})
}

// A driver of another shape than pgx is found out, not crashed into.
func TestNotifications_OtherDrivers(t *testing.T) {
	for name, raw := range map[string]any{
		"NoMethod":    struct{}{},
		"OtherConn":   otherConn{},
		"WithoutWait": withoutWait{},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := notifications(raw)
			require.ErrorIs(t, err, errCannotListen)
		})
	}
}

type otherConn struct{}

func (otherConn) Conn(int) int { return 0 }

type withoutWait struct{}

func (withoutWait) Conn() *withoutWait          { return nil }
func (*withoutWait) WaitForNotification() error { return nil }

// A row that is claimed while it is being given back is a new delivery; one whose handler still runs is not.
func TestLeases_TakeTellsNewDeliveriesFromLapsedLeases(t *testing.T) {
	sub := new(subscription)
	hold := func() *delivery { return &delivery{row: claimed{id: 1}, subscription: sub} }
	l := &leases{held: map[int64]*delivery{}, batches: map[int64]int{}}
	sub.unsettled.Add(2)

	running := hold()
	require.Len(t, l.take([]*delivery{running}), 1)
	lapsed := hold()
	lapsed.expires = time.Now().Add(time.Hour)
	require.Empty(t, l.take([]*delivery{lapsed}), "its handler goes on")
	require.Equal(t, lapsed.expires, running.leaseEnd())

	require.True(t, running.settle())
	running.leave()
	again := hold()
	require.Len(t, l.take([]*delivery{again}), 1, "it has been given back")
	require.Equal(t, []leased{{id: 1}}, l.current([]*delivery{again}))
	require.Empty(t, l.current([]*delivery{running}), "it may not decide on the row any more")
	l.drop(running)
	require.Same(t, again, l.get(1))
	l.drop(again)
	require.Nil(t, l.get(1))
}
