package dlq_test

import (
	"bytes"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

// delivered returns the key of one delivery; a negative partition means a broker without partitions.
func delivered(id string, partition int32, offset int64, payload string) driver.Key {
	m := message.NewMessage("uuid", []byte(payload))
	m.Metadata[envelope.KeyMessageID] = id
	origin := envelope.Origin{Broker: "kafka", Topic: "orders", Consumer: "billing"}
	if partition >= 0 {
		origin.Partition, origin.Offset, origin.Position = &partition, &offset, strconv.FormatInt(offset, 10)
	}
	return dlq.NewEntry(&envelope.DeadLetter{
		Message: m, Reason: envelope.ReasonPermanent, Origin: origin,
		At: time.Now(),
	}).Key
}

// Keys of about the same time are neighbours in an index: those of a partition in its order, those of UUIDv7 in the
// order of time.
func TestKey_Neighbours(t *testing.T) {
	t.Parallel()
	var partition, ids []driver.Key
	for n := range int64(1000) {
		partition = append(partition, delivered("id", 3, 1<<20+n, "{}"))
		id, err := uuid.NewV7()
		require.NoError(t, err)
		ids = append(ids, delivered(id.String(), -1, 0, "{}"))
	}
	order := func(a, b driver.Key) int { return bytes.Compare(a[:8], b[:8]) }
	require.True(t, slices.IsSortedFunc(partition, order))
	require.True(t, slices.IsSortedFunc(ids, order))
	require.Equal(t, partition[0][:2], partition[999][:2], "one stretch of the index for a partition")
	require.NotEqual(t, partition[0][:2], delivered("id", 4, 1<<20, "{}"), "another for the next")
}

// The position is never the whole key: a difference in anything else means another delivery, and the same delivery has
// the same key.
func TestKey_SamePlace(t *testing.T) {
	t.Parallel()
	id := uuid.Must(uuid.NewV7()).String()
	keys := map[driver.Key]bool{}
	deliveries := 0
	for _, message := range []string{id, "1", ""} {
		for _, payload := range []string{"{}", "[]"} {
			for _, partition := range []int32{-1, 0, 1} {
				for _, offset := range []int64{7, 7 + 1<<48} { // one position in a stream that wraps around
					if partition < 0 && offset > 7 {
						continue
					}
					key := delivered(message, partition, offset, payload)
					if message != "" || partition >= 0 { // else each call makes up an id
						require.Equal(t, key, delivered(message, partition, offset, payload))
					}
					keys[key] = true
					deliveries++
				}
			}
		}
	}
	require.Len(t, keys, deliveries)
}
