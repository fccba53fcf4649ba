package idempotency

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// Defaults of a [Config].
const (
	DefaultLease     = time.Minute
	DefaultRetention = 7 * 24 * time.Hour
)

// Config configures a [Guard].
type Config struct {
	// Store records handled messages. Required.
	Store Store
	// Consumer is the first half of the keys. Defaults to the name of the router's handler, so that each handler of a
	// service runs a message once. Services that share a store and have handlers of the same name must set it.
	Consumer string
	// ID returns a message's id, or "" if it has none. Defaults to envelope.Identify.
	ID func(m *message.Message) string
	// Lease is how long a dead owner keeps a message. A handler may take longer, because its lease is renewed. Defaults to
	// one minute.
	Lease time.Duration
	// Retention is how long a message stays done. It must exceed the time in which a duplicate can arrive: the longest
	// retry schedule, and the age at which dead letters are redriven. Defaults to seven days.
	Retention time.Duration
	// Busy turns the error for a message that another owner is handling, and that should be tried again after d, into the
	// handler's error. Defaults to [middleware.Defer], which consumes no attempt: the messages of a worker that was
	// killed stay claimed for a lease, longer than many a retry schedule.
	Busy func(err error, d time.Duration) error
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

func (c *Config) setDefaults() {
	if c.ID == nil {
		c.ID = envelope.Identify
	}
	if c.Lease == 0 {
		c.Lease = DefaultLease
	}
	if c.Retention == 0 {
		c.Retention = DefaultRetention
	}
	if c.Busy == nil {
		c.Busy = middleware.Defer
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

func (c *Config) validate() error {
	var faults []error
	if c.Store == nil {
		faults = append(faults, errors.New("config: Store is required"))
	}
	if c.Lease < 0 {
		faults = append(faults, fmt.Errorf("config: Lease %s must not be negative", c.Lease))
	}
	if c.Retention < 0 {
		faults = append(faults, fmt.Errorf("config: Retention %s must not be negative", c.Retention))
	}
	return errors.Join(faults...)
}
