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

// keyOf digests where the delivery came from, which message it is, and what is in it.
//
// The position alone would do on Kafka, and the message id alone elsewhere, if producers and drivers made no mistakes:
// a producer that gives every message the id "1", or two topics whose positions look alike, would then make one entry
// of many messages, which loses all but one. So everything that is stable over redeliveries goes in. The number of the
// redrive is part of it for the redriven message whose entry is gone (purged, or in another store): it must not meet
// the key of the first death.
func keyOf(o *envelope.Origin, handler, messageID string, data []byte, redrive int) driver.Key {
	h := sha256.New()
	for _, part := range []string{"1", o.Broker, o.Topic, o.Consumer, o.Position, handler, messageID} {
		writePart(h, []byte(part))
	}
	if o.Incarnation != "" { // positions begin anew when a topic is deleted and made again
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

// streamPlace are the first bytes of the key of a delivery that has a place in a stream, in the order of the stream, as
// those of a UUIDv7 are in the order of time: keys that come together are neighbours in the index of a store, and share
// its pages. Those of a digest alone are all over it, which reads a page and, after each checkpoint, writes a whole one
// to the log for every letter. The other 24 bytes keep keys apart.
func streamPlace(o *envelope.Origin) uint64 {
	h := fnv.New64a()
	for _, part := range []string{o.Broker, o.Topic, o.Consumer} {
		writePart(h, []byte(part))
	}
	_ = binary.Write(h, binary.BigEndian, *o.Partition) // a hash takes everything
	const offsetBits = 48
	return h.Sum64()<<offsetBits | uint64(*o.Offset)&(1<<offsetBits-1) //nolint:gosec // any number will do
}

// writePart writes the length first, so that no two lists of parts run together to the same bytes.
func writePart(h hash.Hash, part []byte) {
	h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part)))) //nolint:gosec // header values are far below 4 GiB
	h.Write(part)
}
