package pipelinestatsd_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/DataDog/datadog-go/v5/statsd"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
	"github.com/redrive-go/redrive/middleware/pipelinestatsd"
)

// sent runs failing attempts, with a limit of three, and returns what an agent received, without the durations.
func sent(t *testing.T, change func(*pipelinestatsd.Config), failures ...int) []string {
	t.Helper()
	agent, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, agent.Close()) }()
	client, err := statsd.New(agent.LocalAddr().String(), statsd.WithoutTelemetry(), statsd.WithoutClientSideAggregation(),
		statsd.WithoutOriginDetection(),
		statsd.WithWorkersCount(1))
	require.NoError(t, err)
	cfg := pipelinestatsd.Config{Client: client, Service: "billing"}
	change(&cfg)
	nothing := func(context.Context, envelope.Origin, *message.Message, time.Duration) error { return nil }
	pipeline, err := middleware.New(middleware.Config{
		Observer: pipelinestatsd.New(cfg), Logger: slog.New(slog.DiscardHandler), MaxAttempts: 3,
		Rescheduler: middleware.ReschedulerFunc(nothing),
		DeadLetters: middleware.DeadLetterFunc(func(context.Context, *envelope.DeadLetter) error { return nil }),
	})
	require.NoError(t, err)
	for _, n := range failures {
		m := message.NewMessage("1", message.Payload("0123456789"))
		m.Metadata = message.Metadata{envelope.KeyEvent: "order.placed", envelope.KeyRetryCount: strconv.Itoa(n)}
		_, err := pipeline.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, errors.New("no") })(m)
		require.NoError(t, err)
	}
	require.NoError(t, client.Incr("the.end", nil, 1))
	require.NoError(t, client.Close())
	var lines []string
	buffer := make([]byte, 64<<10)
	for !slices.Contains(lines, "the.end:1|c") {
		require.NoError(t, agent.SetReadDeadline(time.Now().Add(2*time.Minute)))
		n, _, err := agent.ReadFrom(buffer)
		require.NoError(t, err)
		lines = append(lines, strings.Split(strings.TrimSpace(string(buffer[:n])), "\n")...)
	}
	for i := range lines {
		lines[i] = regexp.MustCompile(`duration:[0-9.]+`).ReplaceAllString(lines[i], "duration:MS")
	}
	return slices.DeleteFunc(lines, func(line string) bool { return line == "the.end:1|c" })
}

// The service bus's names and tags.
func TestObserver(t *testing.T) {
	const tags = "|#nano_service_name:billing,event_name:order.placed"
	require.ElementsMatch(t, []string{
		"event_started_count:1|c" + tags + ",retry:first", "rmq_consumer_payload_bytes:10|h" + tags,
		"event_processed_duration:MS|ms" + tags + ",exit_status:failed,retry:first",
		"event_started_count:1|c" + tags + ",retry:last", "rmq_consumer_payload_bytes:10|h" + tags,
		"event_processed_duration:MS|ms" + tags + ",exit_status:failed,retry:last",
		"rmq_consumer_dlx_total:1|c" + tags + ",reason:max_retries_exceeded",
	}, sent(t, func(*pipelinestatsd.Config) {}, 0, 2))
}

// A metric can be off, and the one of first attempts can be sampled while all of the last are sent.
func TestObserver_Sampling(t *testing.T) {
	failures := slices.Repeat([]int{0}, 400)
	lines := sent(t, func(c *pipelinestatsd.Config) {
		c.Rates = map[string]float64{pipelinestatsd.Payload: 0, pipelinestatsd.Duration: 0}
		c.TagRates = map[middleware.Tag]float64{middleware.TagFirst: 0.1}
	}, append(failures, 2, 2, 2)...)
	first, last := 0, 0
	for _, line := range lines {
		require.NotContains(t, line, "payload")
		require.NotContains(t, line, "duration")
		switch {
		case strings.Contains(line, "retry:first"):
			require.Contains(t, line, "|@0.1|")
			first++
		case strings.Contains(line, "retry:last"):
			require.NotContains(t, line, "|@")
			last++
		}
	}
	require.Equal(t, 3, last)
	require.Positive(t, first)
	require.Less(t, first, 150, "about 40 of 400")
}

// The PHP library's variable samples the payload size; a rate in the configuration takes precedence.
func TestObserver_SamplePayloadFromTheEnvironment(t *testing.T) {
	const payload = "rmq_consumer_payload_bytes"
	t.Setenv(pipelinestatsd.EnvSamplePayload, "0")
	lines := sent(t, func(*pipelinestatsd.Config) {}, 0)
	require.NotEmpty(t, lines)
	require.NotContains(t, strings.Join(lines, "\n"), payload)
	lines = sent(t, func(c *pipelinestatsd.Config) { c.Rates = map[string]float64{pipelinestatsd.Payload: 1} }, 0)
	require.Contains(t, strings.Join(lines, "\n"), payload)
	for _, wrong := range []string{"half", "-1", "1.5", "NaN"} {
		t.Setenv(pipelinestatsd.EnvSamplePayload, wrong)
		require.Panics(t, func() { sent(t, func(*pipelinestatsd.Config) {}, 0) }, wrong)
	}
}

// Acks that could not be sent are counted by the broker, and sent once each.
func TestObserver_AcksFailed(t *testing.T) {
	failed := uint64(0)
	lines := sent(t, func(c *pipelinestatsd.Config) { c.AcksFailed = func() uint64 { failed++; return failed / 2 * 2 } },
		0, 0, 0)
	n := 0
	for _, line := range lines {
		if strings.HasPrefix(line, pipelinestatsd.AckFailed) {
			n++
		}
	}
	require.Equal(t, 2, n)
}

// An event's name comes from the message. It ended its tag, the tags, or the line, and began further ones.
func TestObserver_NamesOfEventsAreOneTag(t *testing.T) {
	for event, want := range map[string]string{
		"order.placed": "order.placed",
		"a|c\nspoofed:9|c|#x:y,admin:true\x00\u0085": "a_c_spoofed:9_c_#x:y_admin:true__",
		strings.Repeat("€", 1000):                    strings.Repeat("€", 66),
		"\xff":                                       "",
	} {
		var client tagged
		o := pipelinestatsd.New(pipelinestatsd.Config{Client: &client, Service: "billing"})
		d := &middleware.Delivery{Event: event, Origin: &envelope.Origin{}}
		o.Started(t.Context(), middleware.Started{Delivery: d})
		require.Equal(t, []string{"nano_service_name:billing", "event_name:" + want, "retry:"}, client.tags)
	}
}

// tagged is a client that keeps the last tags.
type tagged struct {
	counting

	tags []string
}

func (c *tagged) Incr(_ string, tags []string, _ float64) error {
	c.tags = tags
	return nil
}

// counting is a client that counts the increases of one metric.
type counting struct{ failed int }

func (c *counting) Incr(name string, _ []string, _ float64) error {
	if name == pipelinestatsd.AckFailed {
		c.failed++
	}
	return nil
}

func (*counting) Histogram(string, float64, []string, float64) error { return nil }

func (*counting) Timing(string, time.Duration, []string, float64) error { return nil }

// An attempt that has read the number of failed acks before another one, and reports it later, must not reset what has
// been sent: the next attempt would send the difference again.
func TestObserver_AcksFailedOutOfOrder(t *testing.T) {
	var (
		client   counting
		observer *pipelinestatsd.Observer
		reads    int
	)
	finish := func() {
		observer.Finished(t.Context(), middleware.Finished{Delivery: &middleware.Delivery{Origin: &envelope.Origin{}}})
	}
	observer = pipelinestatsd.New(pipelinestatsd.Config{Client: &client, AcksFailed: func() uint64 {
		if reads++; reads == 1 {
			finish() // another attempt ends after this one has read 5
			return 5
		}
		return 6
	}})
	finish()
	finish()
	require.Equal(t, 6, client.failed)
}
