package dlq

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"hash/fnv"

	"github.com/google/uuid"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

// keyOf hashes the delivery's origin, the message's id and its content.
//
// The position alone would be enough on Kafka, and the message id alone elsewhere, if producers and drivers made no
// mistakes: a producer that gives every message the id "1", or two topics with similar positions, would turn many
// messages into one entry and lose all but one. So everything that is stable across redeliveries is included. The
// redrive number is included for redriven messages whose entry is gone (purged, or in another store): their key must
// differ from that of the first death.
func keyOf(o *envelope.Origin, handler, messageID string, data []byte, redrive int) driver.Key {
	h := sha256.New()
	for _, part := range []string{"1", o.Broker, o.Topic, o.Consumer, o.Position, handler, messageID} {
		writePart(h, []byte(part))
	}
	if o.Incarnation != "" { // positions restart when a topic is recreated
		writePart(h, []byte(o.Incarnation))
	}
	content := sha256.Sum256(data)
	writePart(h, content[:])
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(redrive))) //nolint:gosec // never negative, see redriveOf
	key := driver.Key(h.Sum(nil))
	if o.Partition != nil && o.Offset != nil {
		binary.BigEndian.PutUint64(key[:], streamPlace(o))
	} else if id, err := uuid.Parse(messageID); err == nil && id.Version() == 7 {
		copy(key[:8], id[:8])
	}
	return key
}

// streamPlace is the first bytes of the key of a delivery with a position in a stream, in stream order, like the time
// in a UUIDv7: keys that arrive together are then neighbours in a store's index and share its pages. Plain digests are
// spread over the whole index, so that every letter reads a page and, after each checkpoint, writes a whole one to the
// log. The other 24 bytes keep keys distinct.
func streamPlace(o *envelope.Origin) uint64 {
	h := fnv.New64a()
	for _, part := range []string{o.Broker, o.Topic, o.Consumer} {
		writePart(h, []byte(part))
	}
	_ = binary.Write(h, binary.BigEndian, *o.Partition) // a hash never fails
	const offsetBits = 48
	return h.Sum64()<<offsetBits | uint64(*o.Offset)&(1<<offsetBits-1) //nolint:gosec // any number will do
}

// writePart writes the length first, so that different lists of parts never produce the same bytes.
func writePart(h hash.Hash, part []byte) {
	h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part)))) //nolint:gosec // header values are far below 4 GiB
	h.Write(part)
}
