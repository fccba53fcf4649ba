package kafka

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// probes is how many stamps are asked for at once: the fastest answer says most.
const probes = 3

// probe writes records without meaning to a retry topic, and learns from their stamps what the leader's clock shows.
func (b *Broker) probe(leader *sarama.Broker, at place) error {
	// One at a time: whoever waited here finds that the clock is known.
	own, _ := b.probing.LoadOrStore(leader.ID(), &sync.Mutex{})
	turn := own.(*sync.Mutex)
	turn.Lock()
	defer turn.Unlock()
	if _, known := b.clocks.now(leader.ID()); known {
		return nil
	}
	for range probes {
		stamp, err := b.stamp(leader, at.topic, at.partition)
		if err != nil {
			return err
		}
		b.clocks.observe(leader.ID(), stamp)
	}
	return nil
}

// stamp returns what the leader's clock showed when it stored a record. The request is made by hand because neither
// client's producer hands the stamp out.
func (b *Broker) stamp(leader *sarama.Broker, topic string, partition int32) (time.Time, error) {
	sent := time.Now()
	req := &sarama.ProduceRequest{
		Version: 7, RequiredAcks: sarama.WaitForAll, Timeout: int32(b.cfg.PublishTimeout.Milliseconds()), //nolint:gosec // G115: a timeout in ms
	}
	mark := header(headerControl, controlProbe)
	req.AddBatch(topic, partition, &sarama.RecordBatch{
		FirstTimestamp: sent, MaxTimestamp: sent, Version: 2, ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1,
		Records: []*sarama.Record{{Headers: []*sarama.RecordHeader{{Key: []byte(mark.Key), Value: mark.Value}}}},
	})
	if err := leader.Open(b.own.Config()); err != nil && !errors.Is(err, sarama.ErrAlreadyConnected) {
		return time.Time{}, err
	}
	answer, err := leader.Produce(req)
	if err != nil {
		_ = leader.Close() // the connection is broken; the next call opens it again
		return time.Time{}, err
	}
	block := answer.GetBlock(topic, partition)
	switch {
	case block == nil:
		return time.Time{}, sarama.ErrIncompleteResponse
	case block.Err != sarama.ErrNoError:
		return time.Time{}, fmt.Errorf("topic %s: %w", topic, block.Err)
	case block.Timestamp.IsZero():
		// The topic keeps the producer's stamps (somebody else made it): then there is no other clock than ours.
		return time.Now(), nil
	}
	return block.Timestamp, nil
}
