package driver

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/dlq/internal/text"
	"github.com/redrive-go/redrive/envelope"
)

// Body is the message of an entry, byte for byte. An entry whose message was edited has several: revision 0 is the
// original.
type Body struct {
	// Revision counts from 0.
	Revision int
	// UUID is the Watermill message's own id.
	UUID string
	// Payload is exactly the consumed payload: any bytes, or none.
	Payload []byte
	// Headers are the message's metadata when it died, including the failure.
	Headers map[string]string
	// Collected is where a collector found the message. It is separate from the headers, which any producer can write.
	Collected envelope.Collected
	// ContentType is the payload's type according to the headers; empty if they have none.
	ContentType string
	// Trace is the error's stack trace, limited to 32 KiB.
	Trace string
	// SHA256 is the digest of Payload.
	SHA256 [32]byte
}

// Exported is an entry with every revision of its body, in order.
type Exported struct {
	// Entry is as it is in the store, without Body. RedriveOf is not set.
	Entry  Entry
	Bodies []Body
}

// Revision is a new revision of an entry's body for a [Store].
type Revision struct {
	EntryID int64
	// Version, unless 0, must be the entry's.
	Version int64
	// Body is the new one. The store numbers it: one more than the last.
	Body *Body
	// Actor is who edits. Required. Note explains why, Detail describes the change, both for the audit log. At is when.
	// Required.
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

// Rehash recomputes the fields derived from payload and headers.
func (b *Body) Rehash() {
	b.SHA256 = sha256.Sum256(b.Payload)
	b.ContentType = text.Clean(b.Headers[envelope.KeyContentType], text.MaxName)
}

type collectedKey struct{}

// WithCollected returns a context for a redriven message, with where a collector found it.
func WithCollected(ctx context.Context, c envelope.Collected) context.Context {
	return context.WithValue(ctx, collectedKey{}, c)
}

// CollectedFrom returns the value of [WithCollected] in a message's context; zero if there is none.
func CollectedFrom(ctx context.Context) envelope.Collected {
	c, _ := ctx.Value(collectedKey{}).(envelope.Collected)
	return c
}
