package kafka

import (
	"hash/fnv"

	"github.com/twmb/franz-go/pkg/kgo"
)

// partitioners map keys to partitions as other clients do. Without a key they rotate: all records of a batch go to one
// partition.
var partitioners = map[string]kgo.Partitioner{
	"murmur2": kgo.StickyKeyPartitioner(nil),
	"fnv":     kgo.StickyKeyPartitioner(kgo.SaramaCompatHasher(fnv32a)),
}

func fnv32a(key []byte) uint32 {
	h := fnv.New32a()
	_, _ = h.Write(key) // never fails
	return h.Sum32()
}

// partitioner sends a record to the partition that it names, and others by key.
type partitioner struct{ byKey kgo.Partitioner }

// ForTopic implements kgo.Partitioner.
func (p partitioner) ForTopic(topic string) kgo.TopicPartitioner {
	return &topicPartitioner{p.byKey.ForTopic(topic)}
}

type topicPartitioner struct{ byKey kgo.TopicPartitioner }

// RequiresConsistency reports that only records without a key may avoid a partition whose leader is down.
func (p *topicPartitioner) RequiresConsistency(r *kgo.Record) bool {
	return r.Partition != anyPartition || p.byKey.RequiresConsistency(r)
}

// Partition implements kgo.TopicPartitioner.
func (p *topicPartitioner) Partition(r *kgo.Record, partitions int) int {
	if r.Partition != anyPartition {
		return int(r.Partition)
	}
	return p.byKey.Partition(r, partitions)
}

// OnNewBatch moves records without a key to another partition.
func (p *topicPartitioner) OnNewBatch() {
	if sticky, ok := p.byKey.(kgo.TopicPartitionerOnNewBatch); ok {
		sticky.OnNewBatch()
	}
}
