package kafka_test

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/logbuffer"
)

// halting is a log handler that stops its callers at a message: inside the driver's poll of the client, between the
// client's answer and the records' way to their partitions.
type halting struct {
	slog.Handler
	at      string
	arrived chan struct{}
	release chan struct{}
}

func (h *halting) Enabled(context.Context, slog.Level) bool { return true }

func (h *halting) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h *halting) Handle(ctx context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, h.at) {
		h.arrived <- struct{}{}
		<-h.release
	}
	return h.Handler.Handle(ctx, r)
}

// refuseFetches makes the cluster answer the next fetches of a group's member from a node with an error.
func refuseFetches(c *kfake.Cluster, node int32) *atomic.Int32 {
	var left atomic.Int32
	c.ControlKey(kmsg.Fetch.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := r.(*kmsg.FetchRequest)
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		if c.CurrentNode() == node && req.SessionEpoch > 0 && left.Load() > 0 {
			resp.ErrorCode = kerr.FetchSessionIDNotFound.Code // the client names its partitions only when a session begins
			return resp, nil, true
		}
		if c.CurrentNode() != node || len(req.Topics) == 0 || !byGroup(&req.Topics[0]) || left.Add(-1) < 0 {
			return nil, nil, false
		}
		answerEmpty(req, resp, kerr.KafkaStorageError.Code)
		return resp, nil, true
	})
	return &left
}

// If a member lost a partition and regained it while records that it had polled were on their way to the partition,
// the new period received them as its own: they were handled twice, and until they were, the position was ahead of
// records that no handler had seen.
func TestPoll_RecordsOfAnEndedPeriodAreDropped(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.NumBrokers(3), kfake.DefaultNumPartitions(3))
	topic := name("orders")
	log := &logbuffer.Buffer{}
	halt := &halting{
		Handler: slog.NewTextHandler(log, nil), at: "a partition cannot be read",
		arrived: make(chan struct{}, 16), release: make(chan struct{}, 16),
	}
	b, err := brokers.OpenConfig(t.Context(), brokers.Config{
		URL:    urlOf(c, "group=billing", "assignor=range", "commit-interval=20ms", "session-timeout=20s", "partitions=3"),
		Logger: slog.New(halt),
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	require.NoError(t, b.Publisher().Publish(topic, newMessage("setup", "")))
	for p := range int32(3) {
		require.NoError(t, c.MoveTopicPartition(topic, p, p))
	}
	first, second := refuseFetches(c, 1), refuseFetches(c, 2) // two partitions, because one that was refused pauses
	messages := subscribe(t, b, topic)
	receiveID(t, messages, "setup").Ack()

	first.Store(1)
	<-halt.arrived // the first poll halts; records and another error gather for the second
	produce(t, c, &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("1")},
		&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("2")})
	second.Store(1)
	<-time.After(time.Second) // real time: nothing tells when the client has fetched them
	halt.release <- struct{}{}
	<-halt.arrived
	rebalance(c)
	<-time.After(time.Second) // real time: the new period must not begin yet
	close(halt.release)
	for _, want := range []string{"1", "2"} {
		m := receive(t, messages)
		require.Equal(t, want, string(m.Payload))
		m.Ack()
	}
	nothingMore(t, messages)
	require.NotContains(t, log.String(), "starts over")
}

// The client does not fetch a partition whose reader is behind, and remembers that when the partition is given up. If
// this member is the next to own the partition, it has to be fetched again.
func TestGroup_RegainsAPartitionThatWasBehind(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.NumBrokers(1), kfake.DefaultNumPartitions(1))
	topic := name("orders")
	b := open(t, c, "assignor=range", "partitions=1", "rebalance-timeout=2s")
	require.NoError(t, b.Publisher().Publish(topic, newMessage("setup", "")))
	messages := subscribe(t, b, topic)
	receiveID(t, messages, "setup") // never acked: it holds up the others until the rebalance abandons it
	missing := map[string]bool{}
	var records []*sarama.ProducerMessage
	for n := range 200 { // 20 MB: many more answers than may wait to be read
		payload := strconv.Itoa(n) + strings.Repeat(" ", 100_000)
		missing[payload] = true
		records = append(records, &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(payload)})
	}
	produce(t, c, records...)
	rebalance(c)
	for len(missing) > 0 {
		m := receive(t, messages)
		delete(missing, string(m.Payload))
		m.Ack()
	}
}

// rebalance makes every member join its group again, once.
func rebalance(c *kfake.Cluster) {
	c.ControlKey(kmsg.Heartbeat.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		resp := r.ResponseKind().(*kmsg.HeartbeatResponse)
		resp.ErrorCode = kerr.RebalanceInProgress.Code
		return resp, nil, true
	})
}
