package kafka

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// clocks estimates what the clocks of the brokers show. Waiting records are stamped by the broker that takes them
// (message.timestamp.type=LogAppendTime), so that neither the producer's clock nor the consumer's matters: one may be a
// minute behind the other. Between two answers of a broker its clock is followed with this process's monotonic one,
// so that setting the wall clock changes nothing either.
//
// An estimate is never ahead of the broker: the stamp in an answer is older than the answer. A message is therefore
// late by the latency of the best answer, and never early. Stamps of records that are read correct one that fell
// behind.
type clocks struct {
	mu       sync.Mutex
	byBroker map[int32]reading
}

type reading struct {
	shown time.Time // by the broker
	at    time.Time // of this process, with its monotonic part
}

// staleAfter bounds what two clocks that run at different speeds drift apart.
const staleAfter = 10 * time.Minute

// observe takes a stamp that the broker has just given.
func (c *clocks) observe(broker int32, stamp time.Time) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.byBroker[broker]; ok && now.Sub(old.at) < staleAfter && old.shown.Add(now.Sub(old.at)).After(stamp) {
		return // the older answer was faster, and says more
	}
	if c.byBroker == nil {
		c.byBroker = map[int32]reading{}
	}
	c.byBroker[broker] = reading{shown: stamp, at: now}
}

// witness takes a stamp that was just read. It is older than one in an answer, and says something only of a clock that
// is known: what waited for a year would put an unknown one a year back.
func (c *clocks) witness(broker int32, stamp time.Time) {
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

// brokerTime returns what the clock of the broker that stamps a retry topic shows. When it has not been heard of for a
// while, a record without meaning is sent there to get a stamp; without an answer the wait continues.
func (s *subscription) brokerTime(ctx context.Context, at place) time.Time {
	age := anyAge
	for n := 1; ; n++ {
		leader, err := s.b.topics.leader(ctx, at, age)
		if err == nil {
			if now, ok := s.b.clocks.now(leader.id); ok {
				return now
			}
			if err = s.b.probe(ctx, leader.id, s.shortest(ctx, leader.id, at)); err == nil {
				continue
			}
		}
		if ctx.Err() != nil {
			return time.Time{}
		}
		age = freshAge
		s.log.Warn("the broker's clock cannot be read; waiting records wait longer", "retry_topic", at.topic, "err", err)
		if !sleep(ctx, retrying.After(n)) {
			return time.Time{}
		}
	}
}

// shortest returns a partition that a broker leads, of the retry topic with the shortest wait that has one: a record
// without meaning is in no other's way there, and not for long among what Depths counts.
func (s *subscription) shortest(ctx context.Context, leader int32, otherwise place) place {
	s.mu.Lock()
	tiers := maps.Clone(s.seen)
	s.mu.Unlock()
	for _, topic := range slices.SortedFunc(maps.Keys(tiers),
		func(a, b string) int { return cmp.Compare(tiers[a].wait, tiers[b].wait) }) {
		partitions, err := s.b.topics.existing(ctx, spec{name: topic})
		if err != nil {
			continue
		}
		for p := range partitions {
			at := place{topic, p}
			if l, err := s.b.topics.leader(ctx, at, anyAge); err == nil && l.id == leader {
				return at
			}
		}
	}
	return otherwise
}

// probes is how many stamps are asked for: the fastest answer says most.
const probes = 3

// probe writes records without meaning to a retry topic, and learns from their stamps what the leader's clock shows.
func (b *transport) probe(ctx context.Context, leader int32, at place) error {
	// One at a time: a caller that waited here finds that the clock is known.
	own, _ := b.probing.LoadOrStore(leader, &sync.Mutex{})
	turn := own.(*sync.Mutex)
	turn.Lock()
	defer turn.Unlock()
	if _, known := b.clocks.now(leader); known {
		return nil
	}
	for range probes {
		stamp, err := b.stamp(ctx, at)
		if err != nil {
			return err
		}
		b.clocks.observe(leader, stamp)
	}
	return nil
}

// stamp returns what the leader's clock showed when it stored a record, which is read again for that. If the topic
// keeps the producer's stamps, because somebody else made it, there is no other clock than ours.
func (b *transport) stamp(ctx context.Context, at place) (time.Time, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, b.cfg.PublishTimeout, b.overdue)
	defer cancel()
	r := &kgo.Record{
		Topic: at.topic, Partition: at.partition,
		Headers: []kgo.RecordHeader{header(headerControl, controlProbe)},
	}
	if err := errors.Join(b.waits.send(ctx, []*kgo.Record{r})...); err != nil {
		return time.Time{}, err
	}
	f := fetcher{client: b.own, topics: b.topics, place: at}
	stored, err := f.at(ctx, r.Offset)
	if err != nil {
		return time.Time{}, err
	}
	return stored.Timestamp, nil
}
