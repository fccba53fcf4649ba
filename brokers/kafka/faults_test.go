package kafka_test

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/envelope"
)

// liar makes a cluster answer some fetch, list offsets and produce requests wrongly: with no records and no error, as a
// newly elected leader does; with an old leader's data; with NOT_LEADER; or late.
type liar struct {
	mu     sync.Mutex
	random *rand.Rand
	share  float64
	told   map[string]int
}

// lies selects the wrong answer, or "" for the correct one.
func (l *liar) lies(kinds ...string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.random.Float64() >= l.share {
		return ""
	}
	kind := kinds[l.random.IntN(len(kinds))]
	l.told[kind]++
	return kind
}

func (l *liar) set(share float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.share = share
}

// answerEmpty answers that every partition ends at the requested offset.
func answerEmpty(req *kmsg.FetchRequest, resp *kmsg.FetchResponse, code int16) {
	for _, topic := range req.Topics {
		t := kmsg.NewFetchResponseTopic()
		t.Topic, t.TopicID = topic.Topic, topic.TopicID
		for _, p := range topic.Partitions {
			one := kmsg.NewFetchResponseTopicPartition()
			one.Partition, one.ErrorCode, one.RecordBatches = p.Partition, code, []byte{}
			one.HighWatermark, one.LastStableOffset, one.LogStartOffset = p.FetchOffset, p.FetchOffset, 0
			t.Partitions = append(t.Partitions, one)
		}
		resp.Topics = append(resp.Topics, t)
	}
}

func lying(c *kfake.Cluster, seed uint64) *liar {
	l := &liar{random: rand.New(rand.NewPCG(seed, 1)), told: map[string]int{}}
	late := func() { c.SleepControl(func() { time.Sleep(30 * time.Millisecond) }) } // real time: the answer is late
	c.ControlKey(kmsg.Fetch.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := r.(*kmsg.FetchRequest)
		kind := l.lies("empty fetch", "empty fetch", "no leader", "late")
		switch kind {
		case "":
			return nil, nil, false
		case "late":
			late()
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		if req.SessionEpoch > 0 {
			resp.SessionID = req.SessionID // no new records
			return resp, nil, true
		}
		code := int16(0)
		if kind == "no leader" {
			code = kerr.NotLeaderForPartition.Code
		}
		answerEmpty(req, resp, code)
		return resp, nil, true
	})
	c.ControlKey(kmsg.ListOffsets.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := r.(*kmsg.ListOffsetsRequest)
		kind := l.lies("stale list", "no leader", "late")
		switch kind {
		case "":
			return nil, nil, false
		case "late":
			late()
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
		for _, topic := range req.Topics {
			t := kmsg.NewListOffsetsResponseTopic()
			t.Topic = topic.Topic
			for _, p := range topic.Partitions {
				one := kmsg.NewListOffsetsResponseTopicPartition()
				one.Partition, one.Offset, one.LeaderEpoch = p.Partition, 0, 0
				if kind == "no leader" {
					one.ErrorCode = kerr.NotLeaderForPartition.Code
				}
				t.Partitions = append(t.Partitions, one)
			}
			resp.Topics = append(resp.Topics, t)
		}
		return resp, nil, true
	})
	c.ControlKey(kmsg.Produce.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := r.(*kmsg.ProduceRequest)
		switch l.lies("no leader", "late") {
		case "":
			return nil, nil, false
		case "late":
			late()
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.ProduceResponse)
		for _, topic := range req.Topics {
			t := kmsg.NewProduceResponseTopic()
			t.Topic, t.TopicID = topic.Topic, topic.TopicID
			for _, p := range topic.Partitions {
				one := kmsg.NewProduceResponseTopicPartition()
				one.Partition, one.ErrorCode = p.Partition, kerr.NotLeaderForPartition.Code
				t.Partitions = append(t.Partitions, one)
			}
			resp.Topics = append(resp.Topics, t)
		}
		return resp, nil, true
	})
	return l
}

// For a second, a newly elected leader may answer a fetch of a confirmed record with no records and no error. A parked
// message was therefore considered deleted: it was settled, and lost.
func TestOrder_EmptyAnswersDoNotLoseParkedMessages(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	var empty atomic.Int32
	c.ControlKey(kmsg.Fetch.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := r.(*kmsg.FetchRequest)
		if len(req.Topics) == 0 || !strings.HasSuffix(req.Topics[0].Topic, ".parked") || empty.Add(-1) < 0 {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		answerEmpty(req, resp, 0)
		return resp, nil, true
	})
	b := open(t, c, "order=key", "concurrency=4")
	topic := name("orders")
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, keyed("a1", "a"), keyed("a2", "a"), keyed("b1", "b")))
	got := map[string]*message.Message{}
	for range 2 {
		m := receive(t, messages)
		got[m.UUID] = m
	}
	empty.Store(5)
	retryIn(t, b, got["a1"], 300*time.Millisecond)
	got["b1"].Ack()
	receiveID(t, messages, "a1").Ack()
	receiveID(t, messages, "a2").Ack()
	require.Negative(t, empty.Load())
}

// Whatever the cluster answers, each message is handled, with order=key in order, even if its partition changes owner.
func TestFaults_WrongAnswersLoseNothing(t *testing.T) {
	t.Parallel()
	for title, params := range map[string][]string{
		"order none":    {"concurrency=4"},
		"order of keys": {"order=key", "concurrency=4"},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			c := cluster(t, kfake.DefaultNumPartitions(2))
			l := lying(c, 7)
			topic := name("orders")
			k := &keyedHandler{
				t: t, strict: title == "order of keys", handled: map[string]int{}, all: map[string]bool{},
				tried: map[string]bool{}, done: make(chan struct{}, faultKeys*perKey*owners*4),
			}
			for round := range owners {
				k.round(c, l, topic, params, round)
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			t.Log(l.told)
			for _, kind := range []string{"empty fetch", "no leader", "late"} {
				require.NotZero(t, l.told[kind], kind)
			}
		})
	}
}

// faultKeys keys get perKey messages for each of the owners of their partitions, one after the other.
const faultKeys, perKey, owners = 10, 12, 2

// keyedHandler handles the numbered messages of several keys, some of them at their second attempt.
type keyedHandler struct {
	t      *testing.T
	strict bool // in order of their numbers

	mu      sync.Mutex
	handled map[string]int  // the next number of each key
	all     map[string]bool // by key and number
	tried   map[string]bool
	done    chan struct{}
}

// round publishes the next messages to a new owner of the partitions, which handles all of them in the last round, and
// otherwise half.
func (k *keyedHandler) round(c *kfake.Cluster, l *liar, topic string, params []string, round int) {
	t := k.t
	opened, err := brokers.Open(t.Context(),
		urlOf(c, append([]string{"group=billing", "commit-interval=20ms", "session-timeout=6s"}, params...)...))
	require.NoError(t, err)
	b := opened.(*kafka.Broker)
	messages := subscribe(t, b, topic)
	ended := make(chan struct{})
	var running sync.WaitGroup
	go func() {
		defer close(ended)
		for m := range messages {
			running.Go(func() { k.handle(b, m) })
		}
	}()
	l.set(0.3)
	for n := range perKey {
		for key := range faultKeys {
			m := newMessage("", strconv.Itoa(round*perKey+n))
			m.Metadata[envelope.KeyKafkaKey] = "k" + strconv.Itoa(key)
			require.NoError(t, b.Publisher().Publish(topic, m))
		}
	}
	want := (round + 1) * perKey * faultKeys
	if round < owners-1 {
		want -= faultKeys * perKey / 2 // the next owner has to handle the rest
	}
	waitHandled(t, &k.mu, k.all, want, k.done)
	require.NoError(t, b.Close())
	<-ended
	running.Wait()
}

func (k *keyedHandler) handle(b *kafka.Broker, m *message.Message) {
	key, number := m.Metadata[envelope.KeyKafkaKey], string(m.Payload)
	n, _ := strconv.Atoi(number)
	k.mu.Lock()
	first := !k.tried[key+number]
	k.tried[key+number] = true
	if k.strict && n > k.handled[key] {
		k.t.Errorf("key %s: message %d before %d", key, n, k.handled[key])
	}
	k.mu.Unlock()
	if first && n%3 == 1 {
		origin, _ := envelope.OriginFrom(m.Context())
		if b.Reschedule(k.t.Context(), *origin, m.Copy(), 100*time.Millisecond) != nil {
			m.Nack()
			return
		}
		m.Ack()
		return
	}
	k.mu.Lock()
	k.handled[key] = max(k.handled[key], n+1)
	k.all[key+" "+number] = true
	k.mu.Unlock()
	m.Ack()
	k.done <- struct{}{}
}

func waitHandled(t *testing.T, mu *sync.Mutex, all map[string]bool, want int, changed <-chan struct{}) {
	t.Helper()
	deadline := time.After(patience)
	for {
		mu.Lock()
		have := len(all)
		mu.Unlock()
		if have >= want {
			return
		}
		select {
		case <-changed:
			deadline = time.After(patience)
		case <-deadline:
			require.FailNow(t, "messages are lost", "%d of %d", have, want)
		}
	}
}
