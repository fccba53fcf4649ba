package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fetcher reads one partition of our own topics from any offset, without waiting for records that do not exist yet. One
// goroutine at a time uses it.
type fetcher struct {
	b *transport // its clocks learn from the timestamps of records
	topicPartition

	ahead  map[int64]*kgo.Record // for at: records of the last answer
	moved  bool                  // the leader may have changed
	beyond int                   // how often in a row the partition ended before the offset
	epoch  int32                 // of the leader that stored the last record read; negative if unknown
	id     topicID               // of the topic that is read, zero before the first answer
}

const fetchBytes = 256 << 10 // Kafka sends at least one batch, however large

func (b *transport) fetcher(at topicPartition) *fetcher {
	return &fetcher{b: b, topicPartition: at, epoch: -1}
}

// fetched is the result of one request.
type fetched struct {
	records []*kgo.Record
	next    int64 // offset to continue at
	start   int64 // where the partition begins
	end     int64 // and ends, as far as the leader knows: a newly elected one may lag behind
}

// errGone means that a record is no longer in its topic.
var errGone = errors.New("the record is gone from its topic")

// at returns the record at an offset, errGone, or errMadeAgain. It retries until ctx ends. An answer without records
// proves nothing: a newly elected leader may not know for a second what it can return. A record is gone when the
// partition begins after it, or when a later one was read in its place.
func (f *fetcher) at(ctx context.Context, offset int64) (*kgo.Record, error) {
	if r, ok := f.ahead[offset]; ok {
		return r, nil
	}
	for n := 1; ; n++ {
		f.epoch = -1 // the offset may be an earlier one
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
		switch {
		case errors.Is(err, errMadeAgain):
			return nil, err
		case errors.Is(err, errLostEnd):
			return nil, errGone
		case n == failuresLogged:
			f.b.log.Warn("a record cannot be read; trying again", "topic", f.topic, "partition", f.partition, "offset", offset,
				"err", err)
		}
		if !sleep(ctx, asking.After(n)) {
			return nil, fmt.Errorf("read %s/%d at %d: %w", f.topic, f.partition, offset, err)
		}
	}
}

// errMadeAgain means that the topic was deleted and recreated: its offsets refer to other records.
var errMadeAgain = errors.New("the topic was deleted and recreated")

// leader returns the leader of the partition or, once, errMadeAgain.
func (f *fetcher) leader(ctx context.Context) (leadership, error) {
	age := recentAge
	if f.moved {
		age = freshAge
	}
	leader, err := f.b.topics.leader(ctx, f.topicPartition, age)
	if err != nil {
		return leadership{}, err
	}
	another := leader.topic.differs(f.id)
	f.moved, f.id = false, leader.topic
	if another {
		f.ahead, f.epoch = nil, -1
		return leadership{}, errMadeAgain
	}
	return leader, nil
}

// fetch reads records from an offset on. A negative offset, or one that the partition no longer has, means its
// beginning.
func (f *fetcher) fetch(ctx context.Context, offset int64) (fetched, error) {
	if offset < 0 {
		start, err := f.b.topics.bound(ctx, f.topicPartition, offsetOldest)
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
	t.Partitions = append(t.Partitions, fetchOf(f.partition, offset, fetchBytes, leader.epoch, f.epoch))
	req.Topics = append(req.Topics, t)
	answer, err := f.b.requests.Broker(int(leader.id)).Request(ctx, req)
	f.moved = true // unless it answers
	if err != nil {
		return fetched{}, err
	}
	part := partitionOf(answer.(*kmsg.FetchResponse), f.topicPartition)
	if part == nil {
		return fetched{}, errors.New("the broker's answer does not name the partition")
	}
	switch err := kerr.ErrorForCode(part.ErrorCode); {
	case errors.Is(err, kerr.OffsetOutOfRange), part.DivergingEpoch.EndOffset >= 0: // it ends there, or its epoch does
		return f.outOfRange(ctx, offset)
	case err != nil:
		return fetched{}, err
	}
	f.beyond, f.moved = 0, false
	return f.unpack(part, offset, leader)
}

// beyondTolerated answers in a row say that a partition ends before the offset: a new leader may not know better.
const beyondTolerated = 5

// errLostEnd means that it does. It has lost its end, and has to be read from its beginning.
var errLostEnd = errors.New("the partition has lost its end")

// outOfRange continues at the beginning of the partition if that is after the offset.
func (f *fetcher) outOfRange(ctx context.Context, offset int64) (fetched, error) {
	start, err := f.b.topics.bound(ctx, f.topicPartition, offsetOldest)
	if err != nil {
		return fetched{}, err
	}
	if start > offset {
		return fetched{next: start, start: start, end: start + 1}, nil // not the end: it is read at once
	}
	if f.beyond++; f.beyond < beyondTolerated {
		return fetched{}, fmt.Errorf("offset %d: %w", offset, kerr.OffsetOutOfRange)
	}
	f.beyond, f.epoch = 0, -1
	return fetched{}, errLostEnd
}

func partitionOf(answer *kmsg.FetchResponse, at topicPartition) *kmsg.FetchResponseTopicPartition {
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

func fetchOf(partition int32, offset int64, limit, epoch, read int32) kmsg.FetchRequestTopicPartition {
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes, p.CurrentLeaderEpoch = partition, offset, limit, epoch
	p.LastFetchedEpoch = read // Kafka then reports that records before the offset are others now (KIP-595)
	return p
}

func (f *fetcher) unpack(part *kmsg.FetchResponseTopicPartition, offset int64, leader leadership) (fetched, error) {
	read, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
		Offset: offset, Topic: f.topic, Partition: f.partition,
	}, part, decompressor, nil)
	if read.Err != nil && len(read.Records) == 0 {
		return fetched{}, read.Err
	}
	if next > offset {
		f.epoch = -1 // that of the end of a transaction, which is not returned, may be a later one
	}
	for _, r := range read.Records {
		if r.Offset+1 == next {
			f.epoch = r.LeaderEpoch
		}
		// A record of an earlier epoch has the timestamp of another broker, whose clock may be ahead.
		if r.Attrs.TimestampType() == stampedByBroker && r.LeaderEpoch == leader.epoch {
			f.b.clocks.correct(leader.id, r.Timestamp)
		}
	}
	return fetched{read.Records, max(next, offset), part.LogStartOffset, part.HighWatermark}, nil
}

var decompressor = kgo.DefaultDecompressor()

// stampedByBroker is the timestamp type LogAppendTime.
const stampedByBroker = 1

// confirmations is how often a partition has to be read to the same end before that counts: a deposed or newly elected
// leader may know only an earlier one.
const confirmations = 2

// all calls visit for every record from an offset up to the partition's current end. It logs what keeps it from that.
func (f *fetcher) all(ctx context.Context, from int64, visit func(*kgo.Record)) error {
	for failures, confirmed := 0, 0; confirmed < confirmations; {
		end, err := f.b.topics.bound(ctx, f.topicPartition, offsetNewest)
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
		confirmed = 0
		failures++
		if failures%failuresLogged == 0 {
			f.b.log.Warn("a partition cannot be read; trying again", "topic", f.topic, "partition", f.partition, "err", err)
		}
		if errors.Is(err, errMadeAgain) || errors.Is(err, errLostEnd) || !sleep(ctx, asking.After(failures)) {
			return fmt.Errorf("read %s/%d at %d: %w", f.topic, f.partition, from, err)
		}
	}
	return nil
}

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
