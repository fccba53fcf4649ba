package dlqhttp

import (
	"time"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
)

// Routes are what the handler serves, as its routers know it.
func (h *Handler) Routes() []access.Route { return h.table }

// RecordEveryGuess takes the bound away from records of guesses: how many have room in it depends on how quick a test
// is.
func (h *Handler) RecordEveryGuess() { h.trail.limit = nil }

// ReadAlways has pages keep nothing between two requests: what they still keep depends on how quick a test is.
func (c *Config) ReadAlways() { c.interval = time.Nanosecond }
