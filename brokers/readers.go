package brokers

import (
	"context"

	"github.com/redrive-go/redrive/envelope"
)

// ReaderCounter is implemented by brokers that can be asked whether a redrive would be read. Whether a broker does is
// found out by a type assertion.
type ReaderCounter interface {
	// Readers returns how many consumers read now what a redrive to origin is published to; 0 also when there is no
	// such place. The error is errors.ErrUnsupported where the broker does not know.
	Readers(ctx context.Context, origin envelope.Origin) (int, error)
}
