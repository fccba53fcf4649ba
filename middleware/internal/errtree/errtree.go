// Package errtree walks errors of foreign code, which may wrap themselves.
package errtree

import (
	"errors"
	"fmt"
)

// mostWrapped is how many errors one may consist of: a batch may join one for each of its rows.
const mostWrapped = 1 << 16

// EndlessError is an error that wraps itself, or too many others, without them.
type EndlessError struct{ Whole error }

// Error does not call that of Whole, which may print what it wraps: no recover stops it before the stack overflows.
func (e EndlessError) Error() string {
	return fmt.Sprintf("%T that wraps itself, or too many others", e.Whole)
}

// Finite returns an error that errors.Is, errors.As and our own walks come to the end of: for one that wraps itself
// they would never return. Every error of foreign code passes through it first, also the value of a panic.
func Finite(err error) (finite error) {
	defer func() {
		if recover() != nil { // its methods may panic
			finite = err
		}
	}()
	left := mostWrapped
	if _, found := Find(err, func(error) (uint64, bool) { left--; return 0, left < 0 }); found {
		return EndlessError{err}
	}
	return err
}

// Find calls find for err and the errors that it wraps, until one call reports true. Unlike errors.As it finds types by
// their names or methods.
func Find(err error, find func(error) (uint64, bool)) (uint64, bool) {
	for ; err != nil; err = errors.Unwrap(err) {
		if n, ok := find(err); ok {
			return n, true
		}
		if many, ok := err.(interface{ Unwrap() []error }); ok {
			for _, branch := range many.Unwrap() {
				if n, ok := Find(branch, find); ok {
					return n, true
				}
			}
		}
	}
	return 0, false
}
