package kafka

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// longPoll tells those who have read a retry topic to its end when there is more. Records of this process are announced
// by arrived; for those of others one request to each broker waits for all topics together, so that an idle topic costs
// no request, and neither does an idle subscription. What has come is read over another connection: there, nothing
// waits behind a request that waits. It is safe for concurrent use.
type longPoll struct {
	client *kgo.Client
	topics *topics

	open    context.Context // ends with close
	end     context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	waiting  map[place]map[*listener]struct{}
	arrivals int            // of listeners, ever
	asking   map[int32]bool // brokers with a goroutine that asks
}

// place is a partition of a topic.
type place struct {
	topic     string
	partition int32
}

// listener waits for a record at an offset.
type listener struct {
	offset int64
	told   chan struct{}
}

// pollWait is how long a broker lets a request wait: also how long a new listener may have to until the next request
// takes it in. The shortest wait in a retry topic is as long, so that nothing is late by it.
const pollWait = nowTier

func newLongPoll(client *kgo.Client, topics *topics) *longPoll {
	l := &longPoll{client: client, topics: topics, waiting: map[place]map[*listener]struct{}{}, asking: map[int32]bool{}}
	l.open, l.end = context.WithCancel(context.Background())
	return l
}

// close ends all requests. No caller may wait any more.
func (l *longPoll) close() {
	l.end()
	l.running.Wait()
}

// wait returns true when the partition may have a record at the offset or behind it, and false when ctx ends first.
func (l *longPoll) wait(ctx context.Context, at place, offset int64) bool {
	leader, err := l.topics.leader(ctx, at, anyAge)
	if err != nil {
		return sleep(ctx, retrying.First) // the read that follows reports it
	}
	me := &listener{offset, make(chan struct{})}
	l.mu.Lock()
	if l.waiting[at] == nil {
		l.waiting[at] = map[*listener]struct{}{}
	}
	l.waiting[at][me] = struct{}{}
	l.arrivals++
	l.askAt(leader.id)
	l.mu.Unlock()
	select {
	case <-me.told:
		return true
	case <-ctx.Done():
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.waiting[at], me)
		if len(l.waiting[at]) == 0 {
			delete(l.waiting, at)
		}
		return false
	}
}

// arrived wakes those who wait for a partition.
func (l *longPoll) arrived(at place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wake(at)
}

// wake is arrived for those who hold mu.
func (l *longPoll) wake(at place) {
	for listener := range l.waiting[at] {
		close(listener.told)
	}
	delete(l.waiting, at)
}

// keepAsking asks one broker for news as long as anything waits for a partition that it leads.
func (l *longPoll) keepAsking(leader int32) {
	for {
		asked, more := l.collect(leader)
		if !more {
			return
		}
		if len(asked) == 0 {
			continue
		}
		ends, err := l.ask(leader, asked)
		l.mu.Lock()
		for at, offset := range asked {
			if end, ok := ends[at]; err != nil || !ok || end > offset {
				l.wake(at) // without an answer too: the read that follows finds the new leader, or reports what is wrong
			}
		}
		l.mu.Unlock()
		if err != nil {
			sleep(l.open, retrying.First)
		}
	}
}

// collect returns the partitions of a broker that are waited for, with the lowest offset of each. No more ends the
// goroutine that asks.
func (l *longPoll) collect(leader int32) (asked map[place]int64, more bool) {
	l.mu.Lock()
	known := l.arrivals
	asked = make(map[place]int64, len(l.waiting))
	for at, listeners := range l.waiting {
		for listener := range listeners {
			if lowest, ok := asked[at]; !ok || listener.offset < lowest {
				asked[at] = listener.offset
			}
		}
	}
	l.mu.Unlock()

	elsewhere := map[place]int32{}
	for at := range asked { // not locked: it may have to ask the cluster
		switch found, err := l.topics.leader(l.open, at, anyAge); {
		case err != nil:
			elsewhere[at] = noLeader
		case found.id != leader:
			elsewhere[at] = found.id
		}
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	for at, id := range elsewhere {
		delete(asked, at)
		if id == noLeader {
			l.wake(at)
		} else {
			l.askAt(id) // it has moved
		}
	}
	if len(asked) == 0 && l.arrivals == known || l.open.Err() != nil {
		delete(l.asking, leader)
		return nil, false
	}
	return asked, true
}

// noLeader stands for the leader of a partition while its cluster chooses one.
const noLeader = -1

// askAt sees to it that a broker is asked. The caller holds mu.
func (l *longPoll) askAt(leader int32) {
	if !l.asking[leader] && l.open.Err() == nil {
		l.asking[leader] = true
		l.running.Go(func() { l.keepAsking(leader) })
	}
}

// ask returns where partitions end, as soon as one of them ends behind its offset, or after a while. Partitions that
// the broker could not answer for are missing.
func (l *longPoll) ask(leader int32, asked map[place]int64) (map[place]int64, error) {
	req := newFetch(1) // where a partition ends is wanted, not what it holds
	req.MaxWaitMillis = int32(pollWait / time.Millisecond)
	byTopic := map[string]int{}
	for at, offset := range asked {
		i, ok := byTopic[at.topic]
		if !ok {
			i = len(req.Topics)
			byTopic[at.topic] = i
			t := kmsg.NewFetchRequestTopic()
			t.Topic = at.topic
			req.Topics = append(req.Topics, t)
		}
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, fetchOf(at.partition, max(offset, 0), 1, -1))
	}
	answer, err := l.client.Broker(int(leader)).Request(l.open, req)
	if err != nil {
		return nil, err
	}
	ends := map[place]int64{}
	for _, t := range answer.(*kmsg.FetchResponse).Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode == 0 {
				ends[place{t.Topic, p.Partition}] = p.HighWatermark
			}
		}
	}
	return ends, nil
}
