package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
)

// fetcher reads single records of one partition, wherever they are. One goroutine at a time uses it.
type fetcher struct {
	client    sarama.Client
	topic     string
	partition int32

	ahead map[int64]*sarama.ConsumerMessage // what came with the last answer
}

const fetchBytes = 256 << 10 // Kafka sends at least one batch, however large

// at returns the record at an offset, or the next one after it if that is gone; nil at the end of the partition.
func (f *fetcher) at(ctx context.Context, offset int64) (*sarama.ConsumerMessage, error) {
	if r, ok := f.ahead[offset]; ok {
		return r, nil
	}
	for attempt := 0; ; attempt++ {
		first, err := f.fetch(offset)
		if err == nil {
			return first, nil
		}
		if !sleep(ctx, min(minPause<<min(attempt, 5), time.Second)) {
			return nil, fmt.Errorf("read %s/%d at %d: %w", f.topic, f.partition, offset, err)
		}
		_ = f.client.RefreshMetadata(f.topic)
	}
}

func (f *fetcher) fetch(offset int64) (first *sarama.ConsumerMessage, err error) {
	leader, epoch, err := f.client.LeaderAndEpoch(f.topic, f.partition)
	if err != nil {
		return nil, err
	}
	req := &sarama.FetchRequest{
		Version: 11, MinBytes: 1, MaxBytes: 64 << 20, SessionEpoch: -1, Isolation: sarama.ReadUncommitted,
	}
	req.AddBlock(f.topic, f.partition, offset, fetchBytes, epoch)
	answer, err := leader.Fetch(req)
	if err != nil {
		_ = leader.Close()
		return nil, err
	}
	block := answer.GetBlock(f.topic, f.partition)
	if block == nil {
		return nil, sarama.ErrIncompleteResponse
	}
	if errors.Is(block.Err, sarama.ErrOffsetOutOfRange) && offset < block.LogStartOffset {
		return f.fetch(block.LogStartOffset)
	}
	if block.Err != sarama.ErrNoError {
		return nil, block.Err
	}
	f.ahead = map[int64]*sarama.ConsumerMessage{}
	for _, set := range block.RecordsSet {
		if set.RecordBatch == nil || set.RecordBatch.Control {
			continue
		}
		batch := set.RecordBatch
		for _, r := range batch.Records {
			at := batch.FirstOffset + r.OffsetDelta
			if at < offset {
				continue
			}
			m := &sarama.ConsumerMessage{
				Topic: f.topic, Partition: f.partition, Offset: at, Key: r.Key, Value: r.Value, Headers: r.Headers,
				Timestamp: batch.FirstTimestamp.Add(r.TimestampDelta),
			}
			if batch.LogAppendTime {
				m.Timestamp = batch.MaxTimestamp
			}
			if first == nil {
				first = m
			}
			f.ahead[at] = m
		}
	}
	return first, nil
}

// all calls visit for every record from an offset up to the end that the partition has now.
func (f *fetcher) all(ctx context.Context, from int64, visit func(*sarama.ConsumerMessage)) error {
	end, err := f.client.GetOffset(f.topic, f.partition, sarama.OffsetNewest)
	if err != nil {
		return err
	}
	for from = max(from, 0); from < end; {
		r, err := f.at(ctx, from)
		if err != nil {
			return err
		}
		if r == nil {
			return nil
		}
		visit(r)
		from = r.Offset + 1
	}
	return nil
}
