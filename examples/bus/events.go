package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"

	"github.com/redrive-go/redrive/middleware"
)

// Event is an event on the bus, published under its name.
type Event struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	About string `json:"about"` // INV-1, U-1
	Cents int    `json:"cents,omitempty"`
	Debug bool   `json:"-"`
}

// events are a morning's traffic.
func events(newID func() string) []Event {
	return []Event{
		{newID(), "invoice.created", "INV-1", 12900, false},
		{newID(), "invoice.created", "INV-2", 4550, false}, // the tax office does not respond
		{newID(), "invoice.paid", "INV-3", 990, false},     // a lock that is released by the second attempt
		{newID(), "invoice.created", "INV-4", -1, false},   // invalid
		{newID(), "user.created", "U-1", 0, false},
		{newID(), "system.ping.1", "bus", 0, false},
		{newID(), "invoice.created", "INV-0", 1, true}, // a developer's test message
	}
}

// handleInvoice is the invoice service's business.
func handleInvoice(ctx context.Context, e Event) error {
	attempt, _ := middleware.AttemptFrom(ctx)
	switch {
	case e.Cents < 0:
		return middleware.Permanent(fmt.Errorf("validation: %s of %d cents", e.About, e.Cents))
	case e.About == "INV-2":
		return fmt.Errorf("tax office: %w", &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
	case e.About == "INV-3" && attempt.Number == 1:
		return errors.New("database: lock timeout")
	}
	return nil
}

// mailer sends mails about every event. Its server greylists new users: the first two attempts are refused.
type mailer struct {
	mu   sync.Mutex
	sent map[string]int
}

func (m *mailer) handle(_ context.Context, e Event) error {
	if e.Name != "user.created" {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sent == nil {
		m.sent = map[string]int{}
	}
	if m.sent[e.ID]++; m.sent[e.ID] < 3 {
		return errors.New("smtp: 451 greylisted, try again")
	}
	return nil
}
