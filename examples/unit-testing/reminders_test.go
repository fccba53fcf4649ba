package reminders_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/brokers/watermill/gochannel"
	"github.com/redrive-go/redrive/envelope"
	reminders "github.com/redrive-go/redrive/examples/unit-testing"
)

// sender fails until it has been called often enough, and records the times of the calls.
type sender struct {
	start    time.Time
	failures int
	calls    []time.Duration
}

func (s *sender) Send(context.Context, string, string) error {
	s.calls = append(s.calls, time.Since(s.start))
	if len(s.calls) <= s.failures {
		return errors.New("sms gateway: connection refused")
	}
	return nil
}

// runFor runs the service on a broker in memory for some virtual time and returns it for inspection.
func runFor(t *testing.T, d time.Duration, sms reminders.Sender, r reminders.Reminder) *memory.Broker {
	t.Helper()
	broker, err := memory.New(brokers.Config{})
	require.NoError(t, err)
	router, err := reminders.NewRouter(broker, sms)
	require.NoError(t, err)
	// Virtual time: the bubble's clock jumps ahead as soon as every goroutine waits.
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	ended := make(chan error)
	go func() { ended <- router.Run(ctx) }()
	<-router.Running()

	require.NoError(t, reminders.Schedule(broker.Publisher(), r, 10*time.Second))
	require.NoError(t, <-ended)
	t.Cleanup(func() { require.NoError(t, broker.Close()) })
	return broker
}

func TestReminder_IsSentAfterItsDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sms := &sender{start: time.Now()}
		runFor(t, time.Hour, sms, reminders.Reminder{OrderID: "1", Phone: "+55 11 99999-0000"})
		require.Equal(t, []time.Duration{10 * time.Second}, sms.calls)
	})
}

// The timeline of system B: a first delivery after 10 s, then retries 10, 20 and 40 s apart.
func TestReminder_RetriesDoubleItsDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sms := &sender{start: time.Now(), failures: 3}
		broker := runFor(t, time.Hour, sms, reminders.Reminder{OrderID: "1", Phone: "+55 11 99999-0000"})
		require.Equal(t, []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second}, sms.calls)
		require.Empty(t, broker.Peek(reminders.Topic+"_dlq", ""))
	})
}

func TestReminder_IsDeadAfterThreeRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sms := &sender{start: time.Now(), failures: 100}
		broker := runFor(t, time.Hour, sms, reminders.Reminder{OrderID: "1", Phone: "+55 11 99999-0000"})
		require.Len(t, sms.calls, 4)

		dead := broker.Peek(reminders.Topic+"_dlq", "")
		require.Len(t, dead, 1)
		letter, err := envelope.FromMessage(dead[0])
		require.NoError(t, err)
		require.Equal(t, 4, letter.RetryCount())
		require.Contains(t, letter.Err().Message, "connection refused")
		require.Equal(t, 10*time.Second, letter.OriginalDelay(), "no retry overwrites the original delay (B2)")
	})
}

func TestReminder_WithoutPhoneIsNotRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sms := &sender{start: time.Now()}
		broker := runFor(t, time.Hour, sms, reminders.Reminder{OrderID: "1"})
		require.Empty(t, sms.calls)
		require.Len(t, broker.Peek(reminders.Topic+"_dlq", ""), 1)
	})
}

// The whole timeline is the same on Watermill's own gochannel and on the memory broker, both in virtual time.
func TestReminder_SameTimelineOnGochannel(t *testing.T) {
	for name, open := range map[string]func() (brokers.Broker, error){
		"memory":    func() (brokers.Broker, error) { return memory.New(brokers.Config{}) },
		"gochannel": func() (brokers.Broker, error) { return gochannel.New(gochannel.Config{}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				broker, err := open()
				require.NoError(t, err)
				sms := &sender{start: time.Now(), failures: 100}
				router, err := reminders.NewRouter(broker, sms)
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error)
				go func() { ended <- router.Run(ctx) }()
				<-router.Running()
				dead, err := broker.Subscriber().Subscribe(ctx, reminders.Topic+"_dlq")
				require.NoError(t, err)
				require.NoError(t, reminders.Schedule(broker.Publisher(),
					reminders.Reminder{OrderID: "1", Phone: "+55 11 99999-0000"}, 10*time.Second))

				letter := <-dead
				require.Equal(t, 80*time.Second, time.Since(sms.start), "with the last failure")
				letter.Ack()
				require.Equal(t, []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second}, sms.calls)
				require.Equal(t, "4", letter.Metadata[envelope.KeyRetryCount])
				cancel()
				require.NoError(t, <-ended)
				require.NoError(t, broker.Close())
			})
		})
	}
}
