package services

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// finalError ends a poll at once.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

// final marks an error after which further attempts are useless.
func final(err error) error { return finalError{err} }

// poll calls try every 25 ms until it returns nil or a final error, or ctx is done.
func poll(ctx context.Context, try func() error) error {
	ticker := time.NewTicker(25 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := try()
		if err == nil || errors.As(err, new(finalError)) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}
