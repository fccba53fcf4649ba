package sqlqueue

import (
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
)

// FuzzHeaders: headers are read back as written, and reading does not panic on any column content.
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
		require.True(t, maps.Equal(headers, got), "%q was read back as %q", headers, got)
		_ = decodeHeaders(foreign, message.Metadata{}) // any text may be in the column
	})
}

func TestAlarm_FiresAtTheEarliestTime(t *testing.T) {
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

func TestIdleness_PollsLessAndLessOften(t *testing.T) {
	i := idleness{longest: 20 * time.Millisecond}
	var pauses []time.Duration
	for range 6 {
		pauses = append(pauses, i.next(false))
	}
	ms := time.Millisecond
	require.Equal(t, []time.Duration{2 * ms, 4 * ms, 8 * ms, 16 * ms, 20 * ms, 20 * ms}, pauses)
	require.Equal(t, 40*ms, i.next(true), "with notifications, it polls slowly")
	for range 100 {
		i.next(true)
	}
	require.Equal(t, time.Second, i.next(true), "it still polls, because a notification may be lost")
	i.reset()
	require.Equal(t, 2*ms, i.next(false))
}

// A consumer leases only as many messages as it can finish in 50 ms.
func TestPace_LooksAheadByTime(t *testing.T) {
	now := time.Now()
	var p pace
	require.Zero(t, p.update(0, now))
	require.Equal(t, 500, p.update(1000, now.Add(100*time.Millisecond)))
	require.Equal(t, 500, p.update(1001, now.Add(100*time.Millisecond)), "too short to measure")
	require.Zero(t, p.update(1002, now.Add(10*time.Second)))
}

func TestLowWater_SometimesReadsFromTheBeginning(t *testing.T) {
	var l lowWater
	now := time.Now()
	require.Zero(t, l.from(now))
	due := int64(10_000_000)
	l.update([]claimed{{dueAt: due + 5}, {dueAt: due}}, true, now, now.Add(time.Millisecond))
	mark := due - lowWaterOverlap.Microseconds()
	require.Equal(t, mark, l.from(now.Add(50*time.Millisecond)))
	require.Zero(t, l.from(now.Add(time.Second)), "a row may have appeared before the mark")

	// Reading everything took 200 ms: it is not repeated for two seconds.
	l.update([]claimed{{dueAt: due}}, true, now, now.Add(200*time.Millisecond))
	require.Equal(t, mark, l.from(now.Add(2*time.Second)))
	require.Zero(t, l.from(now.Add(3*time.Second)))

	// It took 9 s because the server was frozen: the rows of a dead worker do not wait for ten times as long.
	l.update([]claimed{{dueAt: due}}, true, now, now.Add(9*time.Second))
	require.Equal(t, mark, l.from(now.Add(15*time.Second)))
	require.Zero(t, l.from(now.Add(20*time.Second)))

	l.update([]claimed{{dueAt: due}}, false, now, now)
	require.Zero(t, l.from(now), "the end of the due rows was reached")
}

// A burst of publications sends one notification at its start and one at its end.
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
			n.schedule("a", delay)
		}
		require.True(t, n.publish("b"), "topics do not wait for each other")
		n.close()
		require.Equal(t, []time.Duration{time.Minute}, sent)
		time.Sleep(noticeGap) // virtual
		synctest.Wait()
		require.True(t, n.publish("a"))
	})
}

// Any number of topics may be published to: one is forgotten when its gap is over, whether or not another notification
// followed.
func TestNotices_ForgetTheirTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNotices(func(string, time.Duration) {})
		for i := range 1000 {
			topic := strconv.Itoa(i)
			n.publish(topic)
			n.schedule(topic, 0)
			n.schedule(topic+" took longer than the gap", 0)
		}
		time.Sleep(3 * noticeGap) // virtual
		synctest.Wait()
		require.Empty(t, n.gaps)
	})
}

// A driver whose methods differ from pgx's is detected, and does not cause a panic.
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

// A row that is claimed while it is being returned is a new delivery; a row whose handler still runs is not.
func TestLeases_TakeDistinguishesNewDeliveriesFromExpiredLeases(t *testing.T) {
	hold := func() *delivery { return &delivery{row: claimed{id: 1}} }
	l := &leases{held: map[int64]*delivery{}, batches: map[int64]int{}}

	running := hold()
	require.Len(t, l.take([]*delivery{running}), 1)
	lapsed := hold()
	lapsed.expires = time.Now().Add(time.Hour)
	require.Empty(t, l.take([]*delivery{lapsed}), "its handler still runs")
	ends, ours := running.lease()
	require.True(t, ours)
	require.Equal(t, lapsed.expires, ends)

	require.Equal(t, rowOpen, running.decide(true))
	again := hold()
	require.Len(t, l.take([]*delivery{again}), 1, "it has been returned")
	require.Equal(t, []leased{{id: 1}}, l.current([]answer{{delivery: again}}))
	require.Empty(t, l.current([]answer{{delivery: running}}), "it may no longer settle the row")
	l.drop(running)
	require.Same(t, again, l.get(1))
	l.drop(again)
	require.Nil(t, l.get(1))
}

// A shared lease ends with the statement that acks the last of its rows, and not with one that fails, or that acks the
// others while the ack of one is being retried.
func TestLeases_ASharedLeaseEndsWithItsLastRow(t *testing.T) {
	l := &leases{held: map[int64]*delivery{}, batches: map[int64]int{}}
	list := make([]*delivery, 4)
	rows := make([]leased, 4)
	for i, batch := range []int64{7, 7, 7, 0} { // the last was claimed separately
		list[i] = &delivery{row: claimed{id: int64(i + 1), batch: batch}}
		rows[i] = list[i].leased()
	}
	l.take(list)
	require.Equal(t, []int64{7}, l.ending(rows))
	require.Empty(t, l.ending(rows[1:]), "the first statement has failed, and its first row is left out")
	l.drop(list[1:]...)
	require.Equal(t, []int64{7}, l.ending(rows[:1]))
	l.drop(list[0])
	require.Equal(t, []int64{7}, l.ending(nil), "a nack does not end it, the next ack does")
	l.ended([]int64{7})
	require.Empty(t, l.ending(nil))
	require.Empty(t, l.batches)
}

// A retry may be larger than a message of ours by what a failure adds. A dead letter may be as large as the database
// takes: then the engine leaves headers out, or another sink gets it.
func TestFits(t *testing.T) {
	b := &transport{maxMessage: 100 + driver.Headroom, largest: 300 + driver.Headroom}
	for _, c := range []struct {
		kind          driver.DestinationKind
		first         bool
		size, headers int
		want          error
	}{
		{driver.ToTopic, true, 99, 1, nil},
		{driver.ToTopic, true, 100, 1, brokers.ErrTooLarge},
		{driver.ToConsumer, false, 101, 0, brokers.ErrTooLarge},
		{driver.ToDeadLetters, false, 200, 100 + driver.Headroom, nil},
		{driver.ToDeadLetters, false, 200, 101 + driver.Headroom, brokers.ErrTooLarge},
		{driver.ToDeadLetters, false, 301 + driver.Headroom, driver.Headroom, nil},
		{driver.ToDeadLetters, false, 301 + driver.Headroom, driver.Headroom + 1, brokers.ErrTooLarge},
	} {
		o := &driver.Outgoing{To: &driver.Destination{Kind: c.kind}, First: c.first}
		require.ErrorIs(t, b.fits(o, &row{payload: make([]byte, c.size), headers: strings.Repeat("h", c.headers)}), c.want, "%+v", c)
	}
}
