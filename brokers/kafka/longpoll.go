package kafka

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// longPoll notifies readers that have read a retry topic to its end when there is more. Records of this process are
// announced by arrived; for those of others one request to each broker covers all topics, so neither an idle topic nor
// an idle subscription costs a request. New records are read over another connection, where nothing waits behind a long
// poll. It is safe for concurrent use.
type longPoll struct {
	client *kgo.Client
	topics *topics

	open    context.Context // ends on close
	end     context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	waiting map[topicPartition]map[*listener]struct{}
	polling map[int32]bool // brokers that have a polling goroutine
}

// topicPartition is a partition of a topic.
type topicPartition struct {
	topic     string
	partition int32
}

// listener waits for a record at an offset.
type listener struct {
	leader int32 // the broker to ask
	offset int64
	told   chan struct{}
}

const (
	// pollWait is how long a broker may hold a request, and thus how long a new listener may have to wait until the next
	// request includes it. The shortest wait in a retry topic is just as long, so this makes nothing late.
	pollWait = nowTier
	// listenFor bounds a listener's wait: a broker that was deposed without noticing answers that there is nothing new.
	// The read that follows looks for the leader again.
	listenFor = anyAge
)

func newLongPoll(client *kgo.Client, topics *topics) *longPoll {
	l := &longPoll{
		client: client, topics: topics,
		waiting: map[topicPartition]map[*listener]struct{}{}, polling: map[int32]bool{},
	}
	l.open, l.end = context.WithCancel(context.Background())
	return l
}

// close ends all requests. wait must not be running any more.
func (l *longPoll) close() {
	l.end()
	l.running.Wait()
}

// wait returns true when the partition may have a record at or after the offset, and false if ctx ends first.
func (l *longPoll) wait(ctx context.Context, at topicPartition, offset int64) bool {
	leader, err := l.topics.leader(ctx, at, anyAge)
	if err != nil {
		return sleep(ctx, retrying.First) // the read that follows reports the error
	}
	me := &listener{leader.id, offset, make(chan struct{})}
	l.mu.Lock()
	if l.waiting[at] == nil {
		l.waiting[at] = map[*listener]struct{}{}
	}
	l.waiting[at][me] = struct{}{}
	if !l.polling[me.leader] && l.open.Err() == nil {
		l.polling[me.leader] = true
		l.running.Go(func() { l.keepPolling(me.leader) })
	}
	l.mu.Unlock()
	limit := time.NewTimer(listenFor)
	defer limit.Stop()
	select {
	case <-me.told:
		return true
	case <-limit.C:
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting[at], me)
	if len(l.waiting[at]) == 0 {
		delete(l.waiting, at)
	}
	return ctx.Err() == nil
}

// arrived wakes the listeners of a partition.
func (l *longPoll) arrived(at topicPartition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wake(at)
}

// wake is arrived for callers that hold mu.
func (l *longPoll) wake(at topicPartition) {
	for listener := range l.waiting[at] {
		close(listener.told)
	}
	delete(l.waiting, at)
}

// keepPolling polls one broker as long as anything listens to a partition that it leads.
func (l *longPoll) keepPolling(leader int32) {
	for {
		asked := l.collect(leader)
		if len(asked) == 0 {
			return
		}
		ends, err := l.poll(leader, asked)
		l.mu.Lock()
		for at, offset := range asked {
			if end, ok := ends[at]; !ok || end > offset {
				l.wake(at) // even without an answer: the read that follows finds the new leader, or reports the fault
			}
		}
		l.mu.Unlock()
		if err != nil {
			sleep(l.open, retrying.First)
		}
	}
}

// collect returns the partitions with listeners to a broker, and the lowest offset of each. If there are none, the
// polling goroutine has to end.
func (l *longPoll) collect(leader int32) map[topicPartition]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	asked := map[topicPartition]int64{}
	for at, listeners := range l.waiting {
		for listener := range listeners {
			if lowest, ok := asked[at]; listener.leader == leader && (!ok || listener.offset < lowest) {
				asked[at] = listener.offset
			}
		}
	}
	if len(asked) == 0 || l.open.Err() != nil {
		delete(l.polling, leader)
		return nil
	}
	return asked
}

// poll returns the end offsets of partitions as soon as one of them exceeds its offset, or after a while. Partitions
// for which the broker could not answer are missing.
func (l *longPoll) poll(leader int32, asked map[topicPartition]int64) (map[topicPartition]int64, error) {
	req := newFetch(1) // only the end of a partition is needed, not its records
	req.MaxWaitMillis = int32(pollWait / time.Millisecond)
	byTopic := map[string][]kmsg.FetchRequestTopicPartition{}
	for at, offset := range asked {
		byTopic[at.topic] = append(byTopic[at.topic], fetchOf(at.partition, max(offset, 0), 1, -1, -1))
	}
	for name, partitions := range byTopic {
		topic := kmsg.NewFetchRequestTopic()
		topic.Topic, topic.Partitions = name, partitions
		req.Topics = append(req.Topics, topic)
	}
	answer, err := l.client.Broker(int(leader)).Request(l.open, req)
	if err != nil {
		return nil, err
	}
	ends := map[topicPartition]int64{}
	for _, t := range answer.(*kmsg.FetchResponse).Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode == 0 {
				ends[topicPartition{t.Topic, p.Partition}] = p.HighWatermark
			}
		}
	}
	return ends, nil
}
