package kafka

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// clocks estimates the brokers' clocks. Waiting records are timestamped by the broker that receives them
// (message.timestamp.type=LogAppendTime), so neither the producer's clock nor the consumer's matters: one may be a
// minute behind the other. Between two answers a broker's clock is extrapolated with this process's monotonic clock, so
// setting the wall clock changes nothing either.
//
// An estimate is never ahead of the broker, because the timestamp in an answer is older than the answer. A message is
// therefore late by the latency of the best answer, and never early. The timestamps of records read later correct an
// estimate that fell behind.
type clocks struct {
	mu       sync.Mutex
	byBroker map[int32]reading
}

type reading struct {
	shown time.Time // by the broker
	at    time.Time // by this process, with its monotonic part
}

// staleAfter bounds the drift between two clocks that run at different speeds.
const staleAfter = 10 * time.Minute

// observe records a timestamp that the broker has just issued.
func (c *clocks) observe(broker int32, stamp time.Time) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.byBroker[broker]; ok && now.Sub(old.at) < staleAfter && old.shown.Add(now.Sub(old.at)).After(stamp) {
		return // the older answer was faster, and is more precise
	}
	if c.byBroker == nil {
		c.byBroker = map[int32]reading{}
	}
	c.byBroker[broker] = reading{shown: stamp, at: now}
}

// correct records a timestamp from a record that was just read. It is older than one in an answer and only corrects a
// known clock: a record that waited for a year would set an unknown clock back by a year.
func (c *clocks) correct(broker int32, stamp time.Time) {
	if shown, known := c.now(broker); known && stamp.After(shown) {
		c.observe(broker, stamp)
	}
}

// now returns the broker's time, and whether it is known.
func (c *clocks) now(broker int32) (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.byBroker[broker]
	elapsed := time.Since(r.at)
	if !ok || elapsed >= staleAfter {
		return time.Time{}, false
	}
	return r.shown.Add(elapsed), true
}

// brokerTime returns the clock of the broker that timestamps a retry topic. If its time has not been observed for a
// while, a control record is written there to get a timestamp; without an answer the wait continues.
func (s *subscription) brokerTime(ctx context.Context, at topicPartition) time.Time {
	age := anyAge
	for n := 1; ; n++ {
		now, err := s.askTime(ctx, at, age)
		if err == nil || ctx.Err() != nil {
			return now
		}
		age = freshAge
		s.log.Warn("the broker's clock cannot be read; waiting records wait longer", "retry_topic", at.topic, "err", err)
		if !sleep(ctx, retrying.After(n)) {
			return time.Time{}
		}
	}
}

// askTime returns the clock of the partition's leader. A topic that was deleted while its records are held in memory is
// recreated, if auto-create allows: without it the partition has no leader, and the records would wait forever.
func (s *subscription) askTime(ctx context.Context, at topicPartition, age time.Duration) (time.Time, error) {
	leader, err := s.b.topics.leader(ctx, at, age)
	if isGone(err) {
		s.b.topics.forget(at.topic)
		if err = s.has(ctx, at); err == nil {
			leader, err = s.b.topics.leader(ctx, at, freshAge)
		}
	}
	if err != nil {
		return time.Time{}, err
	}
	if now, ok := s.b.clocks.now(leader.id); ok {
		return now, nil
	}
	asked := s.shortest(ctx, leader.id, at)
	if err := s.b.probe(ctx, leader.id, asked); err != nil {
		if isGone(err) {
			s.b.topics.forget(asked.topic)
		}
		return time.Time{}, err
	}
	now, _ := s.b.clocks.now(leader.id)
	return now, nil
}

// shortest returns a partition led by the broker, of the retry topic with the shortest wait that has one: a control
// record delays nothing there, and does not count for long in Depths.
func (s *subscription) shortest(ctx context.Context, leader int32, otherwise topicPartition) topicPartition {
	tiers := s.tiers()
	for _, topic := range slices.SortedFunc(maps.Keys(tiers),
		func(a, b string) int { return cmp.Compare(tiers[a].wait, tiers[b].wait) }) {
		partitions, err := s.b.topics.existing(ctx, spec{name: topic})
		if err != nil || tiers[topic].wait == 0 {
			continue
		}
		for p := range partitions {
			at := topicPartition{topic, p}
			if l, err := s.b.topics.leader(ctx, at, anyAge); err == nil && l.id == leader {
				return at
			}
		}
	}
	return otherwise
}

// probes is how many timestamps are requested: the fastest answer is the most precise.
const probes = 3

// probe writes control records to a retry topic, and learns the leader's clock from their timestamps.
func (b *transport) probe(ctx context.Context, leader int32, at topicPartition) error {
	// One at a time: a caller that waited here finds the clock known. One whose partition is given up does not wait for
	// another's answer: it would hold up a rebalance.
	own, _ := b.probing.LoadOrStore(leader, make(chan struct{}, 1))
	turn := own.(chan struct{})
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if _, known := b.clocks.now(leader); known {
		return nil
	}
	for range probes {
		if err := b.stamp(ctx, leader, at); err != nil {
			return err
		}
	}
	return nil
}

// stamp observes the leader's clock when it stores a record, by reading the record back. It fails if another broker may
// have stored it. If the topic keeps the producer's timestamps, because it was created by others, there is no other
// clock than ours.
func (b *transport) stamp(ctx context.Context, leader int32, at topicPartition) error {
	ctx, cancel := context.WithTimeoutCause(ctx, b.cfg.PublishTimeout, b.overdue)
	defer cancel()
	f := b.fetcher(at)
	before, err := b.topics.leader(ctx, at, freshAge)
	if err != nil {
		return err
	}
	r := &kgo.Record{
		Topic: at.topic, Partition: at.partition,
		Headers: []kgo.RecordHeader{header(headerControl, controlProbe)},
	}
	if err := errors.Join(b.waits.send(ctx, []*kgo.Record{r})...); err != nil {
		return err
	}
	if r, err = f.at(ctx, r.Offset); err != nil {
		return err
	}
	if after, err := f.leader(ctx); err != nil || after != before || after.id != leader {
		return errors.Join(kerr.NotLeaderForPartition, err)
	}
	b.clocks.observe(leader, r.Timestamp)
	return nil
}
