package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fetcher reads one partition of our own topics from any offset, without waiting for what is not there yet. One
// goroutine at a time uses it.
type fetcher struct {
	client *kgo.Client
	topics *topics
	clocks *clocks // learns from the stamps of what is read, if not nil
	place

	ahead map[int64]*kgo.Record // of at: what came with the last answer
	moved bool                  // the leader may be another one
	id    topicID               // of the topic that is read, zero before the first answer
}

const fetchBytes = 256 << 10 // Kafka sends at least one batch, however large

func (b *transport) fetcher(at place) *fetcher {
	return &fetcher{client: b.own, topics: b.topics, clocks: &b.clocks, place: at}
}

// fetched is what one request brought.
type fetched struct {
	records []*kgo.Record
	next    int64 // offset to continue at
	start   int64 // where the partition begins
	end     int64 // and ends, as far as the leader knows: one that was just elected may not know all of it yet
}

// errGone says that a record is not in its topic any more.
var errGone = errors.New("the record is gone from its topic")

// at returns the record at an offset, errGone, or errMadeAgain. It tries again until ctx ends. An answer without
// records proves nothing: a leader that was just elected may not know for a second what it can show. A record is gone
// when the partition begins behind it, or when a later one was read in its place.
func (f *fetcher) at(ctx context.Context, offset int64) (*kgo.Record, error) {
	if r, ok := f.ahead[offset]; ok {
		return r, nil
	}
	for n := 1; ; n++ {
		got, err := f.fetch(ctx, offset)
		if err == nil {
			f.ahead = make(map[int64]*kgo.Record, len(got.records))
			for _, r := range got.records {
				f.ahead[r.Offset] = r
			}
			if r, ok := f.ahead[offset]; ok {
				return r, nil
			}
			if got.start > offset || got.next > offset {
				return nil, errGone
			}
			err = errors.New("nothing there yet")
		}
		if errors.Is(err, errMadeAgain) {
			return nil, err
		}
		if !sleep(ctx, asking.After(n)) {
			return nil, fmt.Errorf("read %s/%d at %d: %w", f.topic, f.partition, offset, err)
		}
	}
}

// errMadeAgain says that the topic was deleted, and another one made of its name: its offsets mean other records.
var errMadeAgain = errors.New("the topic was deleted and made again")

// leader returns who leads the partition, or errMadeAgain, once.
func (f *fetcher) leader(ctx context.Context) (leadership, error) {
	age := recentAge
	if f.moved {
		age = freshAge
	}
	leader, err := f.topics.leader(ctx, f.place, age)
	if err != nil {
		return leadership{}, err
	}
	another := leader.topic.another(f.id)
	f.moved, f.id = false, leader.topic
	if another {
		f.ahead = nil
		return leadership{}, errMadeAgain
	}
	return leader, nil
}

// fetch reads records from an offset on. A negative offset, and one that the partition does not have any more, stands
// for its beginning.
func (f *fetcher) fetch(ctx context.Context, offset int64) (fetched, error) {
	if offset < 0 {
		start, err := f.topics.bound(ctx, f.place, offsetOldest)
		if err != nil {
			return fetched{}, err
		}
		offset = start
	}
	leader, err := f.leader(ctx)
	if err != nil {
		return fetched{}, err
	}
	req := newFetch(fetchBytes)
	t := kmsg.NewFetchRequestTopic()
	t.Topic = f.topic
	t.Partitions = append(t.Partitions, fetchOf(f.partition, offset, fetchBytes, leader.epoch))
	req.Topics = append(req.Topics, t)
	answer, err := f.client.Broker(int(leader.id)).Request(ctx, req)
	if err != nil {
		f.moved = true
		return fetched{}, err
	}
	part := partitionOf(answer.(*kmsg.FetchResponse), f.place)
	if part == nil {
		f.moved = true
		return fetched{}, errors.New("the broker's answer does not name the partition")
	}
	switch err := kerr.ErrorForCode(part.ErrorCode); {
	case errors.Is(err, kerr.OffsetOutOfRange):
		return f.outOfRange(ctx, offset)
	case err != nil:
		f.moved = true
		return fetched{}, err
	}
	return f.unpack(part, offset, leader.id)
}

// outOfRange continues at the beginning of the partition when that is behind the offset. An offset that is ahead of the
// partition is an error: the leader that answered may be an old one.
func (f *fetcher) outOfRange(ctx context.Context, offset int64) (fetched, error) {
	f.moved = true
	start, err := f.topics.bound(ctx, f.place, offsetOldest)
	if err != nil {
		return fetched{}, err
	}
	if start > offset {
		return fetched{next: start, start: start, end: start + 1}, nil // not the end: it is read at once
	}
	return fetched{}, fmt.Errorf("offset %d: %w", offset, kerr.OffsetOutOfRange)
}

func partitionOf(answer *kmsg.FetchResponse, at place) *kmsg.FetchResponseTopicPartition {
	for i := range answer.Topics {
		for j := range answer.Topics[i].Partitions {
			if p := &answer.Topics[i].Partitions[j]; answer.Topics[i].Topic == at.topic && p.Partition == at.partition {
				return p
			}
		}
	}
	return nil
}

func newFetch(limit int32) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.MinBytes, req.MaxBytes, req.SessionEpoch = 1, limit, -1
	return req
}

func fetchOf(partition int32, offset int64, limit, epoch int32) kmsg.FetchRequestTopicPartition {
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes, p.CurrentLeaderEpoch = partition, offset, limit, epoch
	return p
}

func (f *fetcher) unpack(part *kmsg.FetchResponseTopicPartition, offset int64, leader int32) (fetched, error) {
	read, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
		Offset: offset, Topic: f.topic, Partition: f.partition,
	}, part, decompressor, nil)
	if read.Err != nil && len(read.Records) == 0 {
		return fetched{}, read.Err
	}
	for _, r := range read.Records {
		if f.clocks != nil && r.Attrs.TimestampType() == stampedByBroker {
			f.clocks.witness(leader, r.Timestamp)
		}
	}
	return fetched{read.Records, max(next, offset), part.LogStartOffset, part.HighWatermark}, nil
}

var decompressor = kgo.DefaultDecompressor()

// stampedByBroker is the timestamp type LogAppendTime.
const stampedByBroker = 1

// confirmations is how often a partition has to end where it was read to, before that counts as its end: a leader that
// was deposed, or has just been elected, may know of an earlier one only.
const confirmations = 2

// all calls visit for every record from an offset up to the end that the partition has now.
func (f *fetcher) all(ctx context.Context, from int64, visit func(*kgo.Record)) error {
	for failures, confirmed := 0, 0; confirmed < confirmations; {
		end, err := f.topics.bound(ctx, f.place, offsetNewest)
		var got fetched
		if err == nil {
			got, err = f.fetch(ctx, from)
		}
		if err == nil {
			for _, r := range got.records {
				visit(r)
			}
			from, failures = max(from, got.next), 0
			if from >= max(end, got.end) {
				confirmed++
			}
			continue
		}
		if errors.Is(err, errMadeAgain) {
			return err
		}
		confirmed = 0
		failures++
		if !sleep(ctx, asking.After(failures)) {
			return fmt.Errorf("read %s/%d at %d: %w", f.topic, f.partition, from, errors.Join(err, context.Cause(ctx)))
		}
	}
	return nil
}
