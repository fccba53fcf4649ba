package kafka

import (
	"encoding/base64"
	"encoding/binary"
	"maps"
	"slices"
	"sync"
)

// parked is the account of the topic in which messages wait behind an earlier one of their key. They leave it out of
// turn, key by key, so its first message may wait for an hour while thousands behind it are done. Messages done behind
// the first are therefore stored with the position, in the metadata that Kafka keeps with an offset. It is safe for
// concurrent use.
type parked struct {
	mu      sync.Mutex
	waiting map[int64]struct{} // offsets that are not settled
	end     int64              // offset after the last one seen
	changed bool
}

// maxNote is the largest note of a position: Kafka's default for offset.metadata.max.bytes is 4096.
const maxNote = 4000

func newParked(end int64) *parked { return &parked{waiting: map[int64]struct{}{}, end: end} }

func (p *parked) add(offset int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting[offset] = struct{}{}
	p.end = max(p.end, offset+1)
	p.changed = true
}

// pass records an offset that needs nothing.
func (p *parked) pass(offset int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end = max(p.end, offset+1)
	p.changed = true
}

// seen returns the offset after the last one that was added or passed.
func (p *parked) seen() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.end
}

// restart forgets everything, because the topic was recreated.
func (p *parked) restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting, p.end, p.changed = map[int64]struct{}{}, 0, true
}

func (p *parked) settle(offset int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, offset)
	p.changed = true
}

func (p *parked) position() (at position, moved bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now(), p.changed
}

// now is position for callers that hold mu.
func (p *parked) now() position {
	offsets := slices.Sorted(maps.Keys(p.waiting))
	if len(offsets) == 0 {
		return position{offset: p.end}
	}
	return position{offset: offsets[0], note: packNote(offsets, p.end)}
}

// committedAt forgets the change, unless there has been another one since.
func (p *parked) committedAt(at position) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed = p.now() != at
}

// packNote encodes which offsets after the first are not settled, up to an end: the distances between them, and then
// the distance to the end. Offsets for which there is no room count as not settled.
func packNote(offsets []int64, end int64) string {
	var (
		packed []byte
		room   = base64.RawStdEncoding.DecodedLen(maxNote) - 2*binary.MaxVarintLen64
		last   = offsets[0]
	)
	for _, offset := range offsets[1:] {
		if len(packed) >= room {
			end = offset
			break
		}
		packed = binary.AppendUvarint(packed, uint64(offset-last)) //nolint:gosec // G115: offsets ascend
		last = offset
	}
	packed = binary.AppendUvarint(packed, 0)
	packed = binary.AppendUvarint(packed, uint64(end-last)) //nolint:gosec // G115: the end is behind all offsets
	return base64.RawStdEncoding.EncodeToString(packed)
}

// unpackNote returns the offsets from at on that are not settled, and the end, from which on none is settled. A foreign
// note means that everything has to be done again.
func unpackNote(at position) (waiting map[int64]struct{}, end int64) {
	waiting = map[int64]struct{}{at.offset: {}}
	packed, err := base64.RawStdEncoding.DecodeString(at.note)
	if err != nil || at.note == "" {
		return nil, at.offset
	}
	last := at.offset
	for {
		distance, n := binary.Uvarint(packed)
		if n <= 0 {
			return nil, at.offset
		}
		packed = packed[n:]
		if distance == 0 {
			break
		}
		last += int64(distance) //nolint:gosec // G115: written by packNote
		waiting[last] = struct{}{}
	}
	distance, n := binary.Uvarint(packed)
	if n <= 0 {
		return nil, at.offset
	}
	return waiting, last + int64(distance) //nolint:gosec // G115: written by packNote
}
