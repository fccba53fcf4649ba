package redrive

import (
	"errors"

	"github.com/redrive-go/redrive/dlq"
)

var (
	// ErrForbidden means that this person may not do it: for example, approve their own run.
	ErrForbidden = dlq.ErrForbidden
	// ErrLeaseLost means that another process has taken over the run.
	ErrLeaseLost = errors.New("the lease is another process's")
)
