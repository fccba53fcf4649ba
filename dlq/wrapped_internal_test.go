package dlq

import "context"

// NewLateStore is what Open makes of a database that does not answer.
func NewLateStore(open func(ctx context.Context) (Store, error)) Store { return newLateStore(open) }
