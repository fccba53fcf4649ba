package brokers

import (
	"context"

	"github.com/redrive-go/redrive/envelope"
)

// ReaderCounter is implemented by brokers that know whether a redrive would be read. Find out with a type assertion.
type ReaderCounter interface {
	// Readers returns how many consumers currently read the place to which a redrive to origin is published; 0 also if
	// there is no such place. The error is errors.ErrUnsupported if the broker does not know.
	Readers(ctx context.Context, origin envelope.Origin) (int, error)
}
