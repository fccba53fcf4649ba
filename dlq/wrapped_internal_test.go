package dlq

import "context"

// NewLateStore returns the store that Open returns for a database that does not answer.
func NewLateStore(open func(ctx context.Context) (Store, error)) Store { return newLateStore(open) }
