package pipelinemetrics_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
	"github.com/redrive-go/redrive/middleware/pipelinemetrics"
)

// broker accepts retries and dead letters, unless it is down.
type broker struct{ away error }

func (b *broker) Reschedule(context.Context, envelope.Origin, *message.Message, time.Duration) error {
	return b.away
}
func (b *broker) DeadLetter(context.Context, *envelope.DeadLetter) error { return b.away }

type world struct {
	*broker

	metrics  *pipelinemetrics.Metrics
	registry *prometheus.Registry
	pipeline *middleware.Pipeline
}

func newWorld(t *testing.T, cfg pipelinemetrics.Config, change func(*middleware.Config)) *world {
	t.Helper()
	metrics, err := pipelinemetrics.New(cfg)
	require.NoError(t, err)
	w := &world{broker: &broker{}, metrics: metrics, registry: prometheus.NewPedanticRegistry()}
	w.registry.MustRegister(metrics)
	c := middleware.Config{
		Rescheduler: w, DeadLetters: w, Observer: metrics, Logger: slog.New(slog.DiscardHandler),
		MaxAttempts: 3, Backoff: middleware.Constant(5 * time.Second),
		HandlerName: func(context.Context) string { return "billing" }, PublishTries: 2,
	}
	if change != nil {
		change(&c)
	}
	w.pipeline, err = middleware.New(c)
	require.NoError(t, err)
	return w
}

// deliver runs the handler once, for a delivery with so many earlier failures.
func (w *world) deliver(failures int, event string, h func() error) error {
	m := message.NewMessage("1", message.Payload("0123456789"))
	m.Metadata[envelope.KeyEvent] = event
	m.Metadata[envelope.KeyRetryCount] = strconv.Itoa(failures)
	m.SetContext(envelope.WithOrigin(context.Background(),
		&envelope.Origin{Broker: "mem", Topic: "orders", Consumer: "billing"}))
	_, err := w.pipeline.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, h() })(m)
	return err
}

var errTimeout = errors.New("timeout")

func ok() error { return nil }

func slow() error {
	time.Sleep(300 * time.Millisecond) // virtual
	return nil
}

func fails() error { return errTimeout }

// play causes one of each outcome.
func (w *world) play(t *testing.T) {
	t.Helper()
	require.NoError(t, w.deliver(0, "order.placed", slow))
	require.NoError(t, w.deliver(0, "order.placed", fails))
	require.NoError(t, w.deliver(1, "order.placed", fails))
	require.NoError(t, w.deliver(2, "order.placed", fails))
	require.NoError(t, w.deliver(0, "order.paid", func() error { return middleware.Permanent(errTimeout) }))
	require.NoError(t, w.deliver(0, "order.paid", func() error { return middleware.Skip(errTimeout) }))
	require.NoError(t, w.deliver(0, "order.paid", func() error { return middleware.Defer(errTimeout, time.Minute) }))
	w.away = errors.New("broker is down")
	require.ErrorIs(t, w.deliver(0, "order.placed", fails), middleware.ErrNotSettled)
	w.away = nil
}

// Deliveries are counted under the tags first, retry and last, by outcome.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pipelinemetrics.Config{
			NativeFactor: -1, DurationBuckets: []float64{.25, 1},
			DelayBuckets: []float64{10}, PayloadBuckets: []float64{64},
		}, nil)
		w.play(t)
		require.NoError(t, testutil.GatherAndCompare(w.registry, strings.NewReader(golden)))
	})
}

const golden = `
# HELP redrive_attempts_started_total Handler runs started. The attempt is first, retry or last.
# TYPE redrive_attempts_started_total counter
redrive_attempts_started_total{attempt="first",event="order.paid",handler="billing",topic="orders"} 3
redrive_attempts_started_total{attempt="first",event="order.placed",handler="billing",topic="orders"} 3
redrive_attempts_started_total{attempt="last",event="order.paid",handler="billing",topic="orders"} 0
redrive_attempts_started_total{attempt="last",event="order.placed",handler="billing",topic="orders"} 1
redrive_attempts_started_total{attempt="retry",event="order.paid",handler="billing",topic="orders"} 0
redrive_attempts_started_total{attempt="retry",event="order.placed",handler="billing",topic="orders"} 1
# HELP redrive_dead_letter_fallbacks_total Dead letters taken by the fallback because their sink failed.
# TYPE redrive_dead_letter_fallbacks_total counter
redrive_dead_letter_fallbacks_total{handler="billing",topic="orders"} 0
# HELP redrive_dead_letters_total Durable dead letters, by reason.
# TYPE redrive_dead_letters_total counter
redrive_dead_letters_total{event="order.paid",handler="billing",reason="exhausted",topic="orders"} 0
redrive_dead_letters_total{event="order.paid",handler="billing",reason="permanent",topic="orders"} 1
redrive_dead_letters_total{event="order.placed",handler="billing",reason="exhausted",topic="orders"} 1
redrive_dead_letters_total{event="order.placed",handler="billing",reason="permanent",topic="orders"} 0
# HELP redrive_deliveries_total Deliveries by outcome: success, retry, dead_letter, skip, defer, return (at a shutdown) or not_settled.
# TYPE redrive_deliveries_total counter
redrive_deliveries_total{attempt="first",event="order.paid",handler="billing",outcome="dead_letter",topic="orders"} 1
redrive_deliveries_total{attempt="first",event="order.paid",handler="billing",outcome="defer",topic="orders"} 1
redrive_deliveries_total{attempt="first",event="order.paid",handler="billing",outcome="not_settled",topic="orders"} 0
redrive_deliveries_total{attempt="first",event="order.paid",handler="billing",outcome="skip",topic="orders"} 1
redrive_deliveries_total{attempt="first",event="order.placed",handler="billing",outcome="not_settled",topic="orders"} 1
redrive_deliveries_total{attempt="first",event="order.placed",handler="billing",outcome="retry",topic="orders"} 1
redrive_deliveries_total{attempt="first",event="order.placed",handler="billing",outcome="success",topic="orders"} 1
redrive_deliveries_total{attempt="last",event="order.placed",handler="billing",outcome="dead_letter",topic="orders"} 1
redrive_deliveries_total{attempt="retry",event="order.placed",handler="billing",outcome="retry",topic="orders"} 1
# HELP redrive_handler_duration_seconds How long the handler ran. The result is success or failed.
# TYPE redrive_handler_duration_seconds histogram
redrive_handler_duration_seconds_bucket{attempt="first",handler="billing",result="failed",le="0.25"} 5
redrive_handler_duration_seconds_bucket{attempt="first",handler="billing",result="failed",le="1"} 5
redrive_handler_duration_seconds_bucket{attempt="first",handler="billing",result="failed",le="+Inf"} 5
redrive_handler_duration_seconds_sum{attempt="first",handler="billing",result="failed"} 0
redrive_handler_duration_seconds_count{attempt="first",handler="billing",result="failed"} 5
redrive_handler_duration_seconds_bucket{attempt="first",handler="billing",result="success",le="0.25"} 0
redrive_handler_duration_seconds_bucket{attempt="first",handler="billing",result="success",le="1"} 1
redrive_handler_duration_seconds_bucket{attempt="first",handler="billing",result="success",le="+Inf"} 1
redrive_handler_duration_seconds_sum{attempt="first",handler="billing",result="success"} 0.3
redrive_handler_duration_seconds_count{attempt="first",handler="billing",result="success"} 1
redrive_handler_duration_seconds_bucket{attempt="last",handler="billing",result="failed",le="0.25"} 1
redrive_handler_duration_seconds_bucket{attempt="last",handler="billing",result="failed",le="1"} 1
redrive_handler_duration_seconds_bucket{attempt="last",handler="billing",result="failed",le="+Inf"} 1
redrive_handler_duration_seconds_sum{attempt="last",handler="billing",result="failed"} 0
redrive_handler_duration_seconds_count{attempt="last",handler="billing",result="failed"} 1
redrive_handler_duration_seconds_bucket{attempt="retry",handler="billing",result="failed",le="0.25"} 1
redrive_handler_duration_seconds_bucket{attempt="retry",handler="billing",result="failed",le="1"} 1
redrive_handler_duration_seconds_bucket{attempt="retry",handler="billing",result="failed",le="+Inf"} 1
redrive_handler_duration_seconds_sum{attempt="retry",handler="billing",result="failed"} 0
redrive_handler_duration_seconds_count{attempt="retry",handler="billing",result="failed"} 1
# HELP redrive_payload_bytes Size of the payload of each delivery that was run.
# TYPE redrive_payload_bytes histogram
redrive_payload_bytes_bucket{topic="orders",le="64"} 8
redrive_payload_bytes_bucket{topic="orders",le="+Inf"} 8
redrive_payload_bytes_sum{topic="orders"} 80
redrive_payload_bytes_count{topic="orders"} 8
# HELP redrive_publish_failures_total Failed attempts to publish a retry, a deferral or a dead letter.
# TYPE redrive_publish_failures_total counter
redrive_publish_failures_total{handler="billing",outcome="dead_letter",topic="orders"} 0
redrive_publish_failures_total{handler="billing",outcome="defer",topic="orders"} 0
redrive_publish_failures_total{handler="billing",outcome="retry",topic="orders"} 2
# HELP redrive_retry_delay_seconds Delay of the retries and deferrals that the broker has confirmed. The kind is retry or defer.
# TYPE redrive_retry_delay_seconds histogram
redrive_retry_delay_seconds_bucket{handler="billing",kind="defer",topic="orders",le="10"} 0
redrive_retry_delay_seconds_bucket{handler="billing",kind="defer",topic="orders",le="+Inf"} 1
redrive_retry_delay_seconds_sum{handler="billing",kind="defer",topic="orders"} 60
redrive_retry_delay_seconds_count{handler="billing",kind="defer",topic="orders"} 1
redrive_retry_delay_seconds_bucket{handler="billing",kind="retry",topic="orders",le="10"} 2
redrive_retry_delay_seconds_bucket{handler="billing",kind="retry",topic="orders",le="+Inf"} 2
redrive_retry_delay_seconds_sum{handler="billing",kind="retry",topic="orders"} 10
redrive_retry_delay_seconds_count{handler="billing",kind="retry",topic="orders"} 2
`

// The names follow Prometheus' conventions, except those of the service bus.
func TestMetrics_Lint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pipelinemetrics.Config{},
			func(c *middleware.Config) { c.Breaker = &middleware.Breaker{Failures: 1} })
		w.play(t)
		problems, err := testutil.GatherAndLint(w.registry)
		require.NoError(t, err)
		require.Empty(t, problems)
		n, err := testutil.GatherAndCount(w.registry, "redrive_circuit_state", "redrive_circuit_changes_total")
		require.NoError(t, err)
		require.Positive(t, n)

		bus := newWorld(t, pipelinemetrics.Config{ServiceBus: "billing"}, nil)
		bus.play(t)
		problems, err = testutil.GatherAndLint(bus.registry)
		require.NoError(t, err)
		for _, p := range problems {
			require.Regexp(t, "^(event_started_count|event_processed_duration)", p.Metric, p.Text)
		}
	})
}

// Times have native buckets alongside the classic ones.
func TestMetrics_NativeHistograms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pipelinemetrics.Config{}, nil)
		w.play(t)
		families, err := w.registry.Gather()
		require.NoError(t, err)
		native := map[string]bool{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if h := m.GetHistogram(); h != nil {
					require.NotEmpty(t, h.GetBucket(), f.GetName())
					native[f.GetName()] = h.Schema != nil
				}
			}
		}
		require.Equal(t, map[string]bool{
			"redrive_handler_duration_seconds": true, "redrive_retry_delay_seconds": true, "redrive_payload_bytes": false,
		}, native)
	})
}

const busCounters = `
# HELP event_started_count Service bus name: handler runs started. retry is first, retry or last.
# TYPE event_started_count counter
event_started_count{event_name="order.paid",nano_service_name="billing",retry="first"} 3
event_started_count{event_name="order.paid",nano_service_name="billing",retry="last"} 0
event_started_count{event_name="order.paid",nano_service_name="billing",retry="retry"} 0
event_started_count{event_name="order.placed",nano_service_name="billing",retry="first"} 3
event_started_count{event_name="order.placed",nano_service_name="billing",retry="last"} 1
event_started_count{event_name="order.placed",nano_service_name="billing",retry="retry"} 1
# HELP rmq_consumer_ack_failed_total Service bus name: messages redelivered because their acks could not be sent.
# TYPE rmq_consumer_ack_failed_total counter
rmq_consumer_ack_failed_total{nano_service_name="billing"} 3
# HELP rmq_consumer_dlx_total Service bus name: dead letters. reason is max_retries_exceeded if no attempt is left.
# TYPE rmq_consumer_dlx_total counter
rmq_consumer_dlx_total{event_name="order.paid",nano_service_name="billing",reason="max_retries_exceeded"} 0
rmq_consumer_dlx_total{event_name="order.paid",nano_service_name="billing",reason="permanent"} 1
rmq_consumer_dlx_total{event_name="order.placed",nano_service_name="billing",reason="max_retries_exceeded"} 1
`

const busDurations = `
# HELP event_processed_duration Service bus name: how long the handler ran, in ms. Runs.
# TYPE event_processed_duration counter
event_processed_duration{event_name="order.paid",exit_status="failed",nano_service_name="billing",retry="first"} 2
event_processed_duration{event_name="order.paid",exit_status="success",nano_service_name="billing",retry="first"} 1
event_processed_duration{event_name="order.placed",exit_status="failed",nano_service_name="billing",retry="first"} 2
event_processed_duration{event_name="order.placed",exit_status="failed",nano_service_name="billing",retry="last"} 1
event_processed_duration{event_name="order.placed",exit_status="failed",nano_service_name="billing",retry="retry"} 1
event_processed_duration{event_name="order.placed",exit_status="success",nano_service_name="billing",retry="first"} 1
# HELP event_processed_duration_bucket Service bus name: how long the handler ran, in ms. Runs of at most le.
# TYPE event_processed_duration_bucket counter
event_processed_duration_bucket{event_name="order.paid",exit_status="failed",le="250",nano_service_name="billing",retry="first"} 2
event_processed_duration_bucket{event_name="order.paid",exit_status="failed",le="1000",nano_service_name="billing",retry="first"} 2
event_processed_duration_bucket{event_name="order.paid",exit_status="failed",le="+Inf",nano_service_name="billing",retry="first"} 2
event_processed_duration_bucket{event_name="order.paid",exit_status="success",le="250",nano_service_name="billing",retry="first"} 1
event_processed_duration_bucket{event_name="order.paid",exit_status="success",le="1000",nano_service_name="billing",retry="first"} 1
event_processed_duration_bucket{event_name="order.paid",exit_status="success",le="+Inf",nano_service_name="billing",retry="first"} 1
event_processed_duration_bucket{event_name="order.placed",exit_status="failed",le="250",nano_service_name="billing",retry="first"} 2
event_processed_duration_bucket{event_name="order.placed",exit_status="failed",le="1000",nano_service_name="billing",retry="first"} 2
event_processed_duration_bucket{event_name="order.placed",exit_status="failed",le="+Inf",nano_service_name="billing",retry="first"} 2
event_processed_duration_bucket{event_name="order.placed",exit_status="failed",le="250",nano_service_name="billing",retry="last"} 1
event_processed_duration_bucket{event_name="order.placed",exit_status="failed",le="1000",nano_service_name="billing",retry="last"} 1
event_processed_duration_bucket{event_name="order.placed",exit_status="failed",le="+Inf",nano_service_name="billing",retry="last"} 1
event_processed_duration_bucket{event_name="order.placed",exit_status="failed",le="250",nano_service_name="billing",retry="retry"} 1
event_processed_duration_bucket{event_name="order.placed",exit_status="failed",le="1000",nano_service_name="billing",retry="retry"} 1
event_processed_duration_bucket{event_name="order.placed",exit_status="failed",le="+Inf",nano_service_name="billing",retry="retry"} 1
event_processed_duration_bucket{event_name="order.placed",exit_status="success",le="250",nano_service_name="billing",retry="first"} 0
event_processed_duration_bucket{event_name="order.placed",exit_status="success",le="1000",nano_service_name="billing",retry="first"} 1
event_processed_duration_bucket{event_name="order.placed",exit_status="success",le="+Inf",nano_service_name="billing",retry="first"} 1
# HELP event_processed_duration_count Service bus name: how long the handler ran, in ms. Runs.
# TYPE event_processed_duration_count counter
event_processed_duration_count{event_name="order.paid",exit_status="failed",nano_service_name="billing",retry="first"} 2
event_processed_duration_count{event_name="order.paid",exit_status="success",nano_service_name="billing",retry="first"} 1
event_processed_duration_count{event_name="order.placed",exit_status="failed",nano_service_name="billing",retry="first"} 2
event_processed_duration_count{event_name="order.placed",exit_status="failed",nano_service_name="billing",retry="last"} 1
event_processed_duration_count{event_name="order.placed",exit_status="failed",nano_service_name="billing",retry="retry"} 1
event_processed_duration_count{event_name="order.placed",exit_status="success",nano_service_name="billing",retry="first"} 1
# HELP event_processed_duration_sum Service bus name: how long the handler ran, in ms. The sum.
# TYPE event_processed_duration_sum counter
event_processed_duration_sum{event_name="order.paid",exit_status="failed",nano_service_name="billing",retry="first"} 0
event_processed_duration_sum{event_name="order.paid",exit_status="success",nano_service_name="billing",retry="first"} 0
event_processed_duration_sum{event_name="order.placed",exit_status="failed",nano_service_name="billing",retry="first"} 0
event_processed_duration_sum{event_name="order.placed",exit_status="failed",nano_service_name="billing",retry="last"} 0
event_processed_duration_sum{event_name="order.placed",exit_status="failed",nano_service_name="billing",retry="retry"} 0
event_processed_duration_sum{event_name="order.placed",exit_status="success",nano_service_name="billing",retry="first"} 300
`

// The same events under the service bus's names.
func TestMetrics_ServiceBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pipelinemetrics.Config{
			ServiceBus: "billing", AcksFailed: func() uint64 { return 3 }, NativeFactor: -1,
			DurationBuckets: []float64{.25, 1}, PayloadBuckets: []float64{64},
		}, nil)
		w.play(t)
		require.NoError(t, testutil.GatherAndCompare(w.registry, strings.NewReader(busCounters), "event_started_count", "rmq_consumer_ack_failed_total", "rmq_consumer_dlx_total"))
		require.NoError(t, testutil.GatherAndCompare(w.registry, strings.NewReader(busDurations), "event_processed_duration", "event_processed_duration_bucket", "event_processed_duration_count",
			"event_processed_duration_sum"))
	})
}

// Event names can neither blow up the number of series nor break the page with bytes that are not text.
func TestMetrics_BoundsLabels(t *testing.T) {
	w := newWorld(t, pipelinemetrics.Config{MaxValues: 10}, nil)
	var senders sync.WaitGroup
	for sender := range 8 {
		senders.Go(func() {
			for n := range 100 {
				if err := w.deliver(0, fmt.Sprintf("event %d of %d \xff", n, sender), ok); err != nil {
					t.Error(err)
				}
			}
		})
	}
	senders.Wait()
	require.NoError(t, w.deliver(0, strings.Repeat("long", 1000), ok))
	series, err := testutil.GatherAndCount(w.registry, "redrive_attempts_started_total")
	require.NoError(t, err)
	require.Equal(t, 11*3, series, "ten events and the others, each with three tags")
	families, err := w.registry.Gather()
	require.NoError(t, err)
	total, others := 0., 0.
	for _, f := range families {
		if f.GetName() != "redrive_deliveries_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			total += m.GetCounter().GetValue()
			for _, l := range m.GetLabel() {
				if l.GetName() == "event" && l.GetValue() == pipelinemetrics.Other {
					others += m.GetCounter().GetValue()
				}
			}
		}
	}
	require.InDelta(t, 801, total, 0, "none is lost")
	require.InDelta(t, 791, others, 0)
}

// Similar topics, handlers and events are counted separately.
func TestMetrics_DistinguishesSeries(t *testing.T) {
	metrics, err := pipelinemetrics.New(pipelinemetrics.Config{})
	require.NoError(t, err)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(metrics)
	for n := range 3 {
		for _, i := range []int{0, 2, 6, 4, 5, 7, 3, 1} { // each differs from the one before in one of the three
			of := func(bit int) string { return string(rune('a'+(i>>bit)&1)) + "bc" }
			d := middleware.Delivery{
				Origin: &envelope.Origin{Topic: of(0)}, Handler: of(1), Event: of(2),
				Attempt: middleware.Attempt{Tag: middleware.TagFirst},
			}
			for range i + 1 {
				ctx := metrics.Started(t.Context(), middleware.Started{Delivery: &d})
				metrics.Finished(ctx, middleware.Finished{Delivery: &d, Outcome: middleware.OutcomeSuccess, Ran: true})
			}
			for _, name := range []string{"redrive_attempts_started_total", "redrive_deliveries_total"} {
				require.InDelta(t, (n+1)*(i+1), value(t, registry, name, map[string]string{
					"topic": of(0), "handler": of(1), "event": of(2), "attempt": "first",
				}, "outcome", "success"), 0, name)
			}
		}
	}
}

// A state of "other" circuits would be that of the last one to change, so there is no such series.
func TestMetrics_CircuitsBeyondTheBound(t *testing.T) {
	metrics, err := pipelinemetrics.New(pipelinemetrics.Config{MaxValues: 1})
	require.NoError(t, err)
	for _, key := range []string{"bank", "post", "mail"} {
		metrics.BreakerChanged(t.Context(), middleware.BreakerChanged{Key: key, From: "closed", To: "open"})
	}
	require.NoError(t, testutil.CollectAndCompare(metrics, strings.NewReader(`
# HELP redrive_circuit_changes_total State changes of a circuit, by the new state.
# TYPE redrive_circuit_changes_total counter
redrive_circuit_changes_total{circuit="bank",to="open"} 1
redrive_circuit_changes_total{circuit="other",to="open"} 2
# HELP redrive_circuit_state State of a circuit that has ever opened: 0 closed, 1 half-open, 2 open.
# TYPE redrive_circuit_state gauge
redrive_circuit_state{circuit="bank"} 2
`), "redrive_circuit_changes_total", "redrive_circuit_state"))
}

// value returns the value of the one counter with these labels, and possibly one more.
func value(t *testing.T, g prometheus.Gatherer, name string, labels map[string]string, another, is string) float64 {
	t.Helper()
	families, err := g.Gather()
	require.NoError(t, err)
	found := []float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			same := true
			for _, l := range m.GetLabel() {
				want, ok := labels[l.GetName()]
				same = same && (ok && l.GetValue() == want || l.GetName() == another && l.GetValue() == is)
			}
			if same {
				found = append(found, m.GetCounter().GetValue())
			}
		}
	}
	require.Len(t, found, 1, name)
	return found[0]
}

// Nothing counted during a gather is lost, and the buckets of a histogram are consistent at every moment.
func TestMetrics_Sizes(t *testing.T) {
	metrics, err := pipelinemetrics.New(pipelinemetrics.Config{
		PayloadBuckets: []float64{0, 10, 100},
		ServiceBus:     "billing",
	})
	require.NoError(t, err)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(metrics)
	var deliveries sync.WaitGroup
	for range 4 {
		deliveries.Go(func() {
			for n := range 1000 {
				size := []int{0, 1, 10, 11, 100, 101}[n%6]
				d := middleware.Delivery{Origin: &envelope.Origin{Topic: "orders"}, Payload: size}
				metrics.Started(t.Context(), middleware.Started{Delivery: &d})
			}
		})
	}
	for range 100 {
		_, err := registry.Gather() // which checks that no bucket is larger than the next, nor than the count
		require.NoError(t, err)
	}
	deliveries.Wait()
	for name, labels := range map[string]string{
		"redrive_payload_bytes":      `topic="orders"`,
		"rmq_consumer_payload_bytes": `event_name="orders",nano_service_name="billing"`,
	} {
		help := map[string]string{
			"redrive_payload_bytes":      "Size of the payload of each delivery that was run.",
			"rmq_consumer_payload_bytes": "Service bus name: size of the payload of each delivery.",
		}[name]
		require.NoError(t, testutil.GatherAndCompare(registry,
			strings.NewReader(strings.NewReplacer("NAME", name, "HELP_", help, "LABELS", labels).Replace(`
# HELP NAME HELP_
# TYPE NAME histogram
NAME_bucket{LABELS,le="0"} 668
NAME_bucket{LABELS,le="10"} 2004
NAME_bucket{LABELS,le="100"} 3336
NAME_bucket{LABELS,le="+Inf"} 4000
NAME_sum{LABELS} 148160
NAME_count{LABELS} 4000
`)), name))
	}
}

func TestNew_Faults(t *testing.T) {
	_, err := pipelinemetrics.New(pipelinemetrics.Config{MaxValues: -1, NativeFactor: 1, DelayBuckets: []float64{2, 1}})
	require.EqualError(t, err, "pipelinemetrics: invalid config: MaxValues is -1: it cannot be negative; 0 is the "+
		"default of 100\n"+
		"NativeFactor is 1: it must be above 1, or negative for no native buckets\n"+
		"DelayBuckets must be strictly increasing and not empty")
}

// A message whose attempts are used up is dead for that reason, even if the last one panicked: the bus has no other
// reason.
func TestMetrics_ServiceBusPanics(t *testing.T) {
	metrics, err := pipelinemetrics.New(pipelinemetrics.Config{ServiceBus: "billing"})
	require.NoError(t, err)
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	pipeline, err := middleware.New(middleware.Config{
		Observer: metrics, MaxAttempts: 1, Logger: slog.New(slog.DiscardHandler), Rescheduler: middleware.HoldInMemory,
		DeadLetters: middleware.DeadLetterFunc(func(context.Context, *envelope.DeadLetter) error { return nil }),
	})
	require.NoError(t, err)
	m := message.NewMessage("1", nil)
	m.Metadata[envelope.KeyEvent] = "order.placed"
	_, err = pipeline.Middleware(func(*message.Message) ([]*message.Message, error) { panic("a bug") })(m)
	require.NoError(t, err)
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP rmq_consumer_dlx_total Service bus name: dead letters. reason is max_retries_exceeded if no attempt is left.
# TYPE rmq_consumer_dlx_total counter
rmq_consumer_dlx_total{event_name="order.placed",nano_service_name="billing",reason="max_retries_exceeded"} 1
`), "rmq_consumer_dlx_total"))
}
