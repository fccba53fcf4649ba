package driver

import (
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/dlq/internal/text"
	"github.com/redrive-go/redrive/envelope"
)

// Body is the message of an entry, byte for byte. An entry has more than one when the message changed on its way:
// revision 0 is what died first.
type Body struct {
	// Revision counts from 0.
	Revision int
	// UUID is the Watermill message's own id.
	UUID string
	// Payload is exactly what was consumed: any bytes, also none.
	Payload []byte
	// Headers are the message's metadata as they were when it died, the failure recorded.
	Headers map[string]string
	// Collected is where a collector found the message. It is kept apart from the headers, which any producer may
	// write.
	Collected envelope.Collected
	// ContentType is what the headers say of the payload; empty when they say nothing.
	ContentType string
	// Trace is the error's stack trace, bounded to 32 KiB.
	Trace string
	// SHA256 is the digest of Payload.
	SHA256 [32]byte
}

// Exported is an entry with every revision of its body, in the order of their numbers.
type Exported struct {
	// Entry is as it is in the store, without Body. RedriveOf is not set.
	Entry  Entry
	Bodies []Body
}

// Revision asks a [Store] for a new revision of an entry's body.
type Revision struct {
	EntryID int64
	// Version, unless 0, must be the entry's.
	Version int64
	// Body is the new one. Its number is given by the store: one more than the last.
	Body *Body
	// Actor is who edits. Required. Note explains why, Detail what changed, for the audit log. At is when. Required.
	Actor, Note string
	Detail      map[string]string
	At          time.Time
}

// Validate reports what is missing in the revision.
func (r *Revision) Validate() error {
	if r.Body == nil || r.Actor == "" || r.At.IsZero() {
		return fmt.Errorf("%w: a revision needs a body, an actor and a time", ErrInvalid)
	}
	return nil
}

// Rehash brings what follows from payload and headers up to date.
func (b *Body) Rehash() {
	b.SHA256 = sha256.Sum256(b.Payload)
	b.ContentType = text.Clean(b.Headers[envelope.KeyContentType], text.MaxName)
}
