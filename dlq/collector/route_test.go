package collector_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
)

// A run over the dead letters of several brokers: each message goes to its own broker, those that cannot be sent do not
// hold up the others, and the entries of consumers that do not report are closed.
func TestRouter_Run(t *testing.T) {
	t.Parallel()
	letters := newLetters(t)
	east, west, north := newMemory(t, brokers.Config{}), newMemory(t, brokers.Config{}), newMemory(t, brokers.Config{})
	var sources []collector.Source
	const each = 20
	for name, broker := range map[string]brokers.Broker{"east": east, "west": west, "north": north} {
		sources = append(sources,
			collector.Source{Broker: name, Topic: "orders.billing_dlq", Subscriber: broker.Subscriber()},
			collector.Source{Broker: name, Topic: "error", Subscriber: broker.Subscriber()})
	}
	for i := range each {
		deadLetter(t, east, "orders", "billing", fmt.Sprintf("east-%d", i))
		deadLetter(t, west, "orders", "billing", fmt.Sprintf("west-%d", i))
		deadLetter(t, north, "orders", "billing", fmt.Sprintf("north-%d", i))
		foreign := message.NewMessage(fmt.Sprintf("sales-%d", i), []byte("{}"))
		foreign.Metadata = message.Metadata{
			"NServiceBus.FailedQ": "Sales", "NServiceBus.ExceptionInfo.Message": "The bank did not answer",
			"NServiceBus.ExceptionInfo.ExceptionType": "System.TimeoutException", "tenant": "acme",
		}
		require.NoError(t, west.Publisher().Publish("error", foreign))
	}
	c, _ := start(t, collector.Config{Sink: letters, Sources: sources})
	collected(t, c, 4*each)

	// north is not configured, and west's consumers report their outcomes.
	router, err := collector.NewRouter(collector.RouterConfig{
		Store: letters.Store(), Logger: quiet,
		Targets: []collector.Target{
			{Name: "east", Scheme: "mem", Redriver: east},
			{Name: "west", Scheme: "mem", Redriver: west, Publisher: west.Publisher(), Outcome: collector.OutcomeReported},
		},
	})
	require.NoError(t, err)
	sales, err := west.Subscriber().Subscribe(t.Context(), "Sales")
	require.NoError(t, err)
	back := make(chan int, 1)
	go func() {
		n := 0
		for m := range sales {
			if m.Metadata["tenant"] == "acme" && m.Metadata["NServiceBus.FailedQ"] == "" {
				n++
			}
			m.Ack()
			if n == each {
				back <- n
				return
			}
		}
	}()
	runner, err := redrive.NewRunner(letters.Manager(router), redrive.Config{})
	require.NoError(t, err)
	for topic, want := range map[string]redrive.Counts{
		"orders": {Succeeded: each, Out: each, Skipped: each}, "Sales": {Out: each},
	} {
		run, err := runner.StartRun(t.Context(),
			redrive.Spec{ID: topic, Filter: dlq.Filter{Topic: topic}, Stop: redrive.StopCondition{Share: 1}}, dlq.By{Actor: "ana"})
		require.NoError(t, err)
		require.Equal(t, want.Total(), run.Counts.Waiting)
		driveUntil(t, runner, topic, want)
	}
	require.Equal(t, each, <-back)
	require.Len(t, east.Peek("orders", "billing"), each)
	require.Len(t, west.Peek("orders", "billing"), each)
	require.Empty(t, north.Peek("orders", "billing"))
	skipped, err := runner.RunItems(t.Context(), "orders", redrive.ItemFilter{State: redrive.ItemSkipped})
	require.NoError(t, err)
	require.Contains(t, skipped[0].Detail, `broker "north", which is not configured`)
	for _, e := range entries(t, letters) {
		want := dlq.Retrying
		switch e.EventID[:4] {
		case "east":
			want = dlq.Resolved
		case "nort":
			want = dlq.Pending
		}
		require.Equal(t, want, e.Status, e.EventID)
	}
	errs := router.RescheduleAll(t.Context(), make([]envelope.Origin, 2),
		[]*message.Message{message.NewMessage("1", nil), message.NewMessage("2", nil)})
	require.Len(t, errs, 2)
	for _, err := range errs {
		require.ErrorContains(t, err, "names no broker")
	}
}

// driveUntil drives a run until its entries are where they are expected: those that are out stay so.
func driveUntil(t *testing.T, m *redrive.Runner, id string, want redrive.Counts) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	driven := make(chan error, 1)
	go func() {
		_, err := m.Drive(ctx, id)
		driven <- err
	}()
	require.Eventually(t, func() bool {
		run, err := m.Run(t.Context(), id)
		return err == nil && run.Counts == want
	}, 2*time.Minute, 5*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-driven, context.Canceled)
}

// Each broker counts the readers of letters collected from it; those of a foreign consumer's topic are unknown.
func TestRouter_Readers(t *testing.T) {
	t.Parallel()
	east, west := newMemory(t, brokers.Config{}), newMemory(t, brokers.Config{Group: "billing"})
	_, err := west.Subscriber().Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	router, err := collector.NewRouter(collector.RouterConfig{
		Store: newLetters(t).Store(), Logger: quiet,
		Targets: []collector.Target{
			{Name: "east", Scheme: "mem", Redriver: east},
			{Name: "west", Scheme: "mem", Redriver: west, Publisher: west.Publisher()},
		},
	})
	require.NoError(t, err)
	origin := envelope.Origin{Broker: "mem", Topic: "orders", Consumer: "billing"}
	readers := func(from envelope.Collected) (int, error) {
		return router.Readers(driver.WithCollected(t.Context(), from), origin)
	}
	for name, want := range map[string]int{"east": 0, "west": 1} {
		n, err := readers(envelope.Collected{Broker: name, Format: "redrive"})
		require.NoError(t, err)
		require.Equal(t, want, n, name)
	}
	_, err = readers(envelope.Collected{Broker: "west", Format: "nservicebus"})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = readers(envelope.Collected{Broker: "north"})
	require.ErrorContains(t, err, "not configured")
	require.ErrorIs(t, err, redrive.ErrUnreachable, "a redrive would fail, and a preview warns")
	origin = envelope.Origin{Broker: "mem"}
	_, err = readers(envelope.Collected{Broker: "east"})
	require.ErrorIs(t, err, redrive.ErrUnreachable)
	require.ErrorContains(t, err, "the origin of the message is unknown")
	require.NotContains(t, err.Error(), "a broker is not reachable")
}

// Where a foreign consumer cannot be reached alone, a preview warns that every group gets the messages.
func TestRouter_WarnsOfEveryGroup(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ queues, own, warns bool }{
		"a row of a table on Kafka":    {warns: true},
		"a row of a table on RabbitMQ": {queues: true},
		"our own consumer":             {own: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			letters, broker := newLetters(t), newMemory(t, brokers.Config{})
			target := collector.Target{Name: "log", Scheme: "kafka", Redriver: broker, Publisher: broker.Publisher()}
			if tt.queues {
				target.Publisher = nil
			}
			router, err := collector.NewRouter(collector.RouterConfig{
				Store: letters.Store(), Logger: quiet, Targets: []collector.Target{target},
			})
			require.NoError(t, err)
			manager := letters.Manager(router)
			if tt.own {
				require.NoError(t, letters.DeadLetter(t.Context(), &envelope.DeadLetter{
					Message: message.NewMessage("1", []byte("{}")), Reason: envelope.ReasonExhausted,
					Origin: envelope.Origin{Broker: "kafka", Topic: "employees", Consumer: "payroll"},
				}))
			} else {
				_, err = manager.Import(t.Context(), strings.NewReader(`{"id":1,"event_id":"e-1","event_payload":{},`+
					`"created_at":"2025-11-20T07:30:00Z","kafka_topic":"employees"}`), dlq.By{Actor: "ana"})
				require.NoError(t, err)
			}
			runner, err := redrive.NewRunner(manager, redrive.Config{})
			require.NoError(t, err)
			preview, err := runner.PreviewRun(t.Context(), redrive.Spec{}, 0)
			require.NoError(t, err)
			require.Len(t, preview.Destinations, 1)
			warning := preview.Destinations[0].Warning()
			require.Equal(t, tt.warns, strings.Contains(warning, "topic employees: every group that reads it"), warning)
		})
	}
}

// A run with a target on another broker sends the messages there, and closes their entries.
func TestRouter_TargetOnAnotherBroker(t *testing.T) {
	t.Parallel()
	letters, east, lab := newLetters(t), newMemory(t, brokers.Config{}), newMemory(t, brokers.Config{})
	deadLetter(t, east, "orders", "billing", "1")
	consumed(t, lab, "trial", "lab")
	c, _ := start(t, collector.Config{Sink: letters, Sources: []collector.Source{
		{Broker: "east", Topic: "orders.billing_dlq", Subscriber: east.Subscriber()},
	}})
	collected(t, c, 1)
	router, err := collector.NewRouter(collector.RouterConfig{
		Store: letters.Store(), Logger: quiet,
		Targets: []collector.Target{
			{Name: "east", Scheme: "mem", Redriver: east}, {Name: "lab", Scheme: "amqp", Redriver: lab},
		},
	})
	require.NoError(t, err)
	runner, err := redrive.NewRunner(letters.Manager(router), redrive.Config{
		Targets: map[string]envelope.Origin{
			"lab": {Broker: "amqps", Topic: "trial", Consumer: "lab"}, "same": {Broker: "mem", Topic: "trial", Consumer: "lab"},
		},
	})
	require.NoError(t, err)
	same, err := runner.PreviewRun(t.Context(), redrive.Spec{Target: "same"}, 0)
	require.NoError(t, err)
	require.Equal(t, "east", same.Destinations[0].Broker, "it goes to the broker where it was collected")
	preview, err := runner.PreviewRun(t.Context(), redrive.Spec{Target: "lab"}, 0)
	require.NoError(t, err)
	require.Equal(t, "amqps", preview.Destinations[0].Broker)
	run, err := runner.StartRun(t.Context(), redrive.Spec{Target: "lab"}, dlq.By{Actor: "ana"})
	require.NoError(t, err)
	run, err = runner.Drive(t.Context(), run.ID)
	require.NoError(t, err)
	require.Equal(t, redrive.Counts{Succeeded: 1}, run.Counts, run.Cause)
	require.Len(t, lab.Peek("trial", "lab"), 1)
	require.Equal(t, dlq.Resolved, entries(t, letters)[0].Status)
}
