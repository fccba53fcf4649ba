package dlqhttp

import (
	"time"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
)

// Routes returns the routes of the handler's routers.
func (h *Handler) Routes() []access.Route { return h.table }

// RecordEveryGuess removes the bound on records of guesses: how many fit depends on the speed of a test.
func (h *Handler) RecordEveryGuess() { h.trail.limit = nil }

// ReadAlways stops pages from caching between two requests: the cache's content depends on the speed of a test.
func (c *Config) ReadAlways() { c.interval = time.Nanosecond }
