package kafka

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/envelope"
)

// In virtual time, without broker or scheduler latency, a delay is never early, and late only by the error of the
// timestamp and of the estimated clock: at most 1 % or 250 ms over all topics involved. Neither the broker's clock nor
// ours matters.
func TestHold_EndsWhenDueByTheBrokersClock(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	all := newTiers(nil)
	for _, skew := range []time.Duration{0, time.Minute, -time.Minute} { // of the broker's clock
		for range 300 {
			scale := time.Millisecond << random.IntN(32)
			delay := min(time.Duration(random.Int64N(int64(scale))), envelope.MaxDelay).Truncate(time.Millisecond)
			behind := time.Duration(random.Int64N(int64(20 * time.Millisecond))) // the round trip of the probe
			synctest.Test(t, func(t *testing.T) {
				var c clocks
				shown := func() time.Time { return time.Now().Add(skew) }
				estimate := func() time.Time {
					now, known := c.now(1)
					if !known { // probed again, as brokerTime does
						stamp := shown()
						time.Sleep(behind)
						c.observe(1, stamp)
						now, _ = c.now(1)
					}
					return now
				}
				p := &partition{ctx: t.Context(), sub: &subscription{}}
				began := time.Now()
				headers := []kgo.RecordHeader{header(headerWait, strconv.FormatInt(delay.Milliseconds(), 10))}
				for rest := delay; rest > 0 || began.Equal(time.Now()); {
					wait := all.pick(rest, delay)
					r := &kgo.Record{Timestamp: shown().Truncate(time.Millisecond), Headers: headers}
					q := &retryReader{p: p, wait: wait, now: estimate}
					due, whole := q.due(r)
					require.Equal(t, delay, whole)
					held := time.Now()
					var ok bool
					rest, ok = q.hold(r, due)
					require.True(t, ok)
					require.LessOrEqual(t, time.Since(held), wait+2*behind+20*time.Millisecond, "it delays later records")
					headers = []kgo.RecordHeader{headers[0], header(envelope.KeyNotBefore, strconv.FormatInt(due.UnixMilli(), 10))}
					if rest <= 0 {
						break
					}
				}
				late := time.Since(began) - delay
				require.GreaterOrEqual(t, late, time.Duration(0), "delay %s", delay)
				require.LessOrEqual(t, late, max(delay/100, 250*time.Millisecond), "delay %s", delay)
				require.LessOrEqual(t, late, behind+20*time.Millisecond, "delay %s", delay)
			})
		}
	}
}

// Any client can write records with any due time to a retry topic. A record never waits longer than the delay that it
// was written with: one with a forged due time used to be parked for 30 days.
func TestDue_IsBoundedByTheDelay(t *testing.T) {
	stamped := time.UnixMilli(1_800_000_000_000)
	forged := strconv.FormatInt(stamped.Add(30*24*time.Hour).UnixMilli(), 10)
	q := &retryReader{}
	for delay, headers := range map[time.Duration][]kgo.RecordHeader{
		0:           {header(envelope.KeyNotBefore, forged)},
		time.Second: {header(envelope.KeyNotBefore, forged), header(headerWait, "1000")},
	} {
		due, _ := q.due(&kgo.Record{Timestamp: stamped, Headers: headers})
		require.Equal(t, stamped.Add(delay+time.Millisecond), due)
	}
	early := strconv.FormatInt(stamped.Add(200*time.Millisecond).UnixMilli(), 10)
	due, _ := q.due(&kgo.Record{
		Timestamp: stamped,
		Headers:   []kgo.RecordHeader{header(envelope.KeyNotBefore, early), header(headerWait, "1000")},
	})
	require.True(t, due.Equal(stamped.Add(200*time.Millisecond)), "the rest of a delay")
}
