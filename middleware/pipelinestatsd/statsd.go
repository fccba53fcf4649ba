// Package pipelinestatsd sends the activity of a retry pipeline to a DogStatsD agent, under the names and tags of the
// PHP service bus (event_started_count, event_processed_duration in milliseconds, ...), so that its dashboards keep
// working without Prometheus.
//
//	client, err := statsd.New("127.0.0.1:8125")
//	observer := pipelinestatsd.New(pipelinestatsd.Config{Client: client, Service: "billing"})
//	pipeline, err := middleware.New(middleware.Config{Observer: observer, ...})
//
// Metrics can be sampled, each at its own rate and by the attempt's tag: for example all of the last attempts and a
// tenth of the first. As in the bus's PHP library, the environment variable STATSD_SAMPLE_PAYLOAD is the rate of
// payload sizes if none is configured. The agent scales each value by its rate. Tags are not bounded here, because a
// StatsD agent has its own limits.
package pipelinestatsd

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/redrive-go/redrive/middleware"
)

// Names of the metrics, used as keys of [Config.Rates].
const (
	Started   = "event_started_count"
	Payload   = "rmq_consumer_payload_bytes"
	Duration  = "event_processed_duration"
	AckFailed = "rmq_consumer_ack_failed_total"
	Dead      = "rmq_consumer_dlx_total"
)

// Client is the part of *statsd.Client (github.com/DataDog/datadog-go/v5/statsd) that this package uses.
type Client interface {
	Incr(name string, tags []string, rate float64) error
	Histogram(name string, value float64, tags []string, rate float64) error
	Timing(name string, value time.Duration, tags []string, rate float64) error
}

// Config specifies what to send.
type Config struct {
	// Client sends the metrics. Required; New panics without it. The caller closes it.
	Client Client
	// Service is the value of the tag nano_service_name.
	Service string
	// AcksFailed returns how many messages were handled but could not be acked, sent as AckFailed:
	// brokermetrics.AcksFailed of the service's broker. Defaults to none.
	AcksFailed func() uint64
	// Rates are the fractions of the metrics to send, from 0 to 1, by name. All of an unnamed metric is sent, except
	// Payload, whose fraction is then that of [EnvSamplePayload].
	Rates map[string]float64
	// TagRates are further factors by the attempt's tag: {TagFirst: 0.1} sends a tenth for the first attempts and
	// everything for the others.
	TagRates map[middleware.Tag]float64
}

// EnvSamplePayload is the environment variable with the fraction of payload sizes to send, from 0 to 1.
const EnvSamplePayload = "STATSD_SAMPLE_PAYLOAD"

// Observer sends metrics. It is safe for concurrent use. It does not wait for a client that cannot send, and drops
// metrics that the client rejects.
type Observer struct {
	middleware.NopObserver

	cfg     Config
	payload float64       // the rate of Payload if Rates does not name it
	acks    atomic.Uint64 // failed acks that have been sent
}

var _ middleware.Observer = (*Observer)(nil)

// New creates an Observer.
func New(cfg Config) *Observer {
	if cfg.Client == nil {
		panic("pipelinestatsd: New needs a Client")
	}
	o := &Observer{cfg: cfg, payload: 1}
	if text := os.Getenv(EnvSamplePayload); text != "" {
		rate, err := strconv.ParseFloat(text, 64)
		if err != nil || !(rate >= 0 && rate <= 1) {
			panic(fmt.Sprintf("pipelinestatsd: %s=%q: must be a fraction from 0 to 1", EnvSamplePayload, text))
		}
		o.payload = rate
	}
	return o
}

// rate is the fraction of a metric to send for an attempt.
func (o *Observer) rate(name string, tag middleware.Tag) float64 {
	rate := 1.0
	if r, ok := o.cfg.Rates[name]; ok {
		rate = r
	} else if name == Payload {
		rate = o.payload
	}
	if r, ok := o.cfg.TagRates[tag]; ok {
		rate *= r
	}
	return min(max(rate, 0), 1)
}

func (o *Observer) tags(d *middleware.Delivery, more ...string) []string {
	// A message's own text must not end the tag, nor the line, and an agent has no room for a long one.
	event := cmp.Or(d.Event, d.Origin.Topic)
	event = strings.Map(func(r rune) rune {
		if r == '|' || r == ',' || unicode.IsControl(r) {
			return '_'
		}
		return r
	}, strings.ToValidUTF8(event[:min(len(event), 200)], ""))
	return append([]string{"nano_service_name:" + o.cfg.Service, "event_name:" + event}, more...)
}

// Started implements [middleware.Observer].
func (o *Observer) Started(ctx context.Context, e middleware.Started) context.Context {
	tag := e.Attempt.Tag
	if r := o.rate(Started, tag); r > 0 {
		_ = o.cfg.Client.Incr(Started, o.tags(e.Delivery, "retry:"+string(tag)), r)
	}
	if r := o.rate(Payload, tag); r > 0 {
		_ = o.cfg.Client.Histogram(Payload, float64(e.Payload), o.tags(e.Delivery), r)
	}
	return ctx
}

// Finished implements [middleware.Observer].
func (o *Observer) Finished(_ context.Context, e middleware.Finished) {
	tag := e.Attempt.Tag
	o.sendAcks()
	r := o.rate(Duration, tag)
	if r == 0 || !e.Ran {
		return
	}
	status := "failed"
	if e.Outcome == middleware.OutcomeSuccess || e.Outcome == middleware.OutcomeSkip {
		status = "success"
	}
	_ = o.cfg.Client.Timing(Duration, e.Duration, o.tags(e.Delivery, "exit_status:"+status, "retry:"+string(tag)), r)
}

// sendAcks sends the number of acks that have failed since the last attempt ended.
func (o *Observer) sendAcks() {
	if o.cfg.AcksFailed == nil {
		return
	}
	now, sent := o.cfg.AcksFailed(), o.acks.Load()
	// Attempts that end at once may have read now in another order: what has been sent must not shrink.
	for sent < now && !o.acks.CompareAndSwap(sent, now) {
		sent = o.acks.Load()
	}
	for ; sent < now && now-sent <= maxAcks; sent++ {
		_ = o.cfg.Client.Incr(AckFailed, []string{"nano_service_name:" + o.cfg.Service}, 1)
	}
}

// maxAcks bounds what one attempt sends: a connection never has more deliveries in flight.
const maxAcks = 65535

// DeadLettered implements [middleware.Observer].
func (o *Observer) DeadLettered(_ context.Context, e middleware.DeadLettered) {
	if r := o.rate(Dead, e.Attempt.Tag); r > 0 {
		_ = o.cfg.Client.Incr(Dead, o.tags(e.Delivery, "reason:"+e.ServiceBusReason()), r)
	}
}
