package kafka

import (
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"
)

// A key keeps its partition when a service moves here from a Java producer, sarama or watermill-kafka: the partitions
// are those of sarama's own partitioners, of which murmur2 is also Java's.
func TestPartitioners_ChooseAsOtherClientsDo(t *testing.T) {
	for name, theirs := range map[string]sarama.PartitionerConstructor{
		"murmur2": sarama.NewMurmur2Partitioner, "fnv": sarama.NewHashPartitioner,
	} {
		rapid.Check(t, func(t *rapid.T) {
			key := rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(t, "key")
			n := rapid.Int32Range(1, 200).Draw(t, "partitions")
			want, err := theirs("orders").Partition(&sarama.ProducerMessage{Key: sarama.ByteEncoder(key)}, n)
			require.NoError(t, err)
			ours := partitioners[name].ForTopic("orders")
			r := &kgo.Record{Key: key, Partition: anyPartition}
			require.EqualValues(t, want, ours.Partition(r, int(n)), name)
			require.True(t, ours.RequiresConsistency(r), "a key waits for its leader")
		})
	}
}

// Records without a key are spread over the partitions in batches.
func TestPartitioners_SpreadRecordsWithoutKey(t *testing.T) {
	ours := partitioners["murmur2"].ForTopic("orders")
	seen := map[int]bool{}
	for range 1000 {
		r := &kgo.Record{Partition: anyPartition}
		require.False(t, ours.RequiresConsistency(r))
		first := ours.Partition(r, 8)
		require.Equal(t, first, ours.Partition(r, 8), "the same batch")
		seen[first] = true
		ours.(kgo.TopicPartitionerOnNewBatch).OnNewBatch()
	}
	require.Len(t, seen, 8)
}
