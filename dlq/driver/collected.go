package driver

import (
	"context"

	"github.com/redrive-go/redrive/envelope"
)

// CollectedHeaders are the headers in which earlier versions kept [Body.Collected]: broker, queue or topic, and format.
// They are removed from captured messages, because any producer can write them.
var CollectedHeaders = [3]string{"x-collected-broker", "x-collected-from", "x-collected-format"}

// WhereCollected is where a collector found the message: Collected, or the headers of a body that an earlier version
// stored.
func (b *Body) WhereCollected() envelope.Collected {
	if b.Collected != (envelope.Collected{}) {
		return b.Collected
	}
	return envelope.Collected{
		Broker: b.Headers[CollectedHeaders[0]], From: b.Headers[CollectedHeaders[1]], Format: b.Headers[CollectedHeaders[2]],
	}
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
