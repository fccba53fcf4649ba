package redrive

import (
	"errors"

	"github.com/redrive-go/redrive/dlq"
)

var (
	// ErrForbidden means that this person may not do it: approve their own run, for example.
	ErrForbidden = dlq.ErrForbidden
	// ErrLeaseLost means that another process carries the run on.
	ErrLeaseLost = errors.New("the lease is another process's")
)
