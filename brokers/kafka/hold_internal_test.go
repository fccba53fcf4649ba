package kafka

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
)

// In virtual time, where no broker and no scheduler adds anything: a delay ends when it is over, late by what the stamp
// and the clock's estimate are off, 1 % or 250 ms at most over all topics that it takes, and never early. Neither the
// broker's clock nor ours matters.
func TestHold_EndsWhenDueOnTheBrokersClock(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	all := newTiers(nil)
	for _, skew := range []time.Duration{0, time.Minute, -time.Minute} { // of the broker's clock
		for range 300 {
			scale := time.Millisecond << random.IntN(32)
			delay := min(time.Duration(random.Int64N(int64(scale))), envelope.MaxDelay).Truncate(time.Millisecond)
			behind := time.Duration(random.Int64N(int64(20 * time.Millisecond))) // the answer that the estimate stands on
			synctest.Test(t, func(t *testing.T) {
				var c clocks
				shown := func() time.Time { return time.Now().Add(skew) }
				estimate := func() time.Time {
					now, known := c.now(1)
					if !known { // asked again, as brokerTime does
						stamp := shown()
						time.Sleep(behind)
						c.observe(1, stamp)
						now, _ = c.now(1)
					}
					return now
				}
				p := &partition{ctx: t.Context(), sub: &subscription{}}
				began := time.Now()
				headers := []*sarama.RecordHeader{{Key: []byte(headerWait), Value: []byte(strconv.FormatInt(delay.Milliseconds(), 10))}}
				for rest := delay; rest > 0 || began.Equal(time.Now()); {
					wait := all.pick(rest, delay)
					r := &sarama.ConsumerMessage{Timestamp: shown().Truncate(time.Millisecond), Headers: headers}
					q := &pump{p: p, wait: wait, now: estimate}
					due, whole := q.due(r)
					require.Equal(t, delay, whole)
					held := time.Now()
					var ok bool
					rest, ok = q.hold(r, due)
					require.True(t, ok)
					require.LessOrEqual(t, time.Since(held), wait+2*behind+20*time.Millisecond, "it holds up those behind it")
					headers = []*sarama.RecordHeader{headers[0], {Key: []byte(envelope.KeyNotBefore), Value: []byte(strconv.FormatInt(due.UnixMilli(), 10))}}
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
