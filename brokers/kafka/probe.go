package kafka

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// probes is how many stamps are asked for: the fastest answer says most.
const probes = 3

// probe writes records without meaning to a retry topic, and learns from their stamps what the leader's clock shows.
func (b *Broker) probe(ctx context.Context, leader int32, at place) error {
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
func (b *Broker) stamp(ctx context.Context, at place) (time.Time, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, b.cfg.PublishTimeout, b.overdue)
	defer cancel()
	r := &kgo.Record{Topic: at.topic, Partition: at.partition, Headers: []kgo.RecordHeader{header(headerControl, controlProbe)}}
	if err := b.waits.send(ctx, r); err != nil {
		return time.Time{}, err
	}
	f := fetcher{client: b.own, topics: b.topics, place: at}
	stored, err := f.at(ctx, r.Offset)
	if err != nil {
		return time.Time{}, err
	}
	return stored.Timestamp, nil
}
