package main

import (
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"
)

// registry is the payroll's register of employees. The line to the unit in Manaus is bad: for each event the first call
// times out, the second finds no listener, the third gets through. Safe for concurrent use.
type registry struct {
	mu        sync.Mutex
	calls     map[string]int // to Manaus, by event
	employees map[string]Employee
}

const badLine = "Manaus"

func newRegistry() *registry {
	return &registry{calls: map[string]int{}, employees: map[string]Employee{}}
}

// save stores the employee unless a later version is stored already. It may be called any number of times.
func (r *registry) save(_ context.Context, e Employee) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Unit == badLine {
		event := fmt.Sprintf("%s/%d", e.ID, e.Version)
		r.calls[event]++
		switch r.calls[event] {
		case 1:
			return fmt.Errorf("registry in %s: %w", e.Unit, context.DeadlineExceeded)
		case 2:
			return fmt.Errorf("registry in %s: %w", e.Unit, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
		}
	}
	if r.employees[e.ID].Version <= e.Version {
		r.employees[e.ID] = e
	}
	return nil
}

// headcount returns the number of employees, without dismissed ones.
func (r *registry) headcount() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.employees {
		if e.DismissedOn == "" {
			n++
		}
	}
	return n
}
