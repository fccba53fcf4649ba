package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/IBM/sarama"
)

// fetcher reads one partition of our own topics from any offset, without waiting for what is not there yet. One goroutine
// at a time uses it.
type fetcher struct {
	client    sarama.Client
	clocks    *clocks // learns from the stamps of what is read, if not nil
	topic     string
	partition int32

	ahead map[int64]*sarama.ConsumerMessage // of at: what came with the last answer
}

const fetchBytes = 256 << 10 // Kafka sends at least one batch, however large

// at returns the record at an offset, or the next one after it if that is gone; nil at the end of the partition.
func (f *fetcher) at(ctx context.Context, offset int64) (*sarama.ConsumerMessage, error) {
	if r, ok := f.ahead[offset]; ok {
		return r, nil
	}
	for attempt := 0; ; attempt++ {
		records, _, _, err := f.fetch(offset)
		if err == nil {
			f.ahead = make(map[int64]*sarama.ConsumerMessage, len(records))
			for _, r := range records {
				f.ahead[r.Offset] = r
			}
			if len(records) == 0 {
				return nil, nil //nolint:nilnil // the end
			}
			return records[0], nil
		}
		if !sleep(ctx, min(minPause<<min(attempt, 5), maxPause)) {
			return nil, fmt.Errorf("read %s/%d at %d: %w", f.topic, f.partition, offset, err)
		}
	}
}

// fetch returns records from an offset on, the offset to go on at, and where the partition ended. A negative offset, and
// one that the partition does not have, stands for its beginning.
func (f *fetcher) fetch(offset int64) (records []*sarama.ConsumerMessage, next, end int64, err error) {
	if offset < 0 {
		if offset, err = f.client.GetOffset(f.topic, f.partition, sarama.OffsetOldest); err != nil {
			return nil, 0, 0, err
		}
	}
	leader, epoch, err := f.client.LeaderAndEpoch(f.topic, f.partition)
	if err != nil {
		return nil, 0, 0, err
	}
	req := newFetch(fetchBytes)
	req.AddBlock(f.topic, f.partition, offset, fetchBytes, epoch)
	answer, err := leader.Fetch(req)
	if err != nil {
		_ = leader.Close() // the connection is broken; the next call opens it again
		_ = f.client.RefreshMetadata(f.topic)
		return nil, 0, 0, err
	}
	block := answer.GetBlock(f.topic, f.partition)
	switch {
	case block == nil:
		return nil, 0, 0, sarama.ErrIncompleteResponse
	case errors.Is(block.Err, sarama.ErrOffsetOutOfRange):
		oldest, err := f.client.GetOffset(f.topic, f.partition, sarama.OffsetOldest)
		if err != nil || oldest == offset {
			return nil, offset, offset, err
		}
		return f.fetch(oldest)
	case block.Err != sarama.ErrNoError:
		_ = f.client.RefreshMetadata(f.topic)
		return nil, 0, 0, block.Err
	}
	records, next = f.unpack(block, offset, leader.ID())
	return records, next, block.HighWaterMarkOffset, nil
}

func newFetch(limit int32) *sarama.FetchRequest {
	return &sarama.FetchRequest{
		Version: 11, MinBytes: 1, MaxBytes: limit, SessionEpoch: -1, Isolation: sarama.ReadUncommitted,
	}
}

func (f *fetcher) unpack(block *sarama.FetchResponseBlock, offset int64, leader int32) (records []*sarama.ConsumerMessage, next int64) {
	next = offset
	for _, set := range block.RecordsSet {
		batch := set.RecordBatch
		if batch == nil {
			continue
		}
		next = max(next, batch.LastOffset()+1)
		if batch.Control {
			continue
		}
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
			records = append(records, m)
		}
		if batch.LogAppendTime && f.clocks != nil {
			f.clocks.witness(leader, batch.MaxTimestamp)
		}
	}
	return records, next
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
