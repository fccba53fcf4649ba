package dlqhttp

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/driver"
)

// auditTrail records in the audit log what changes nothing: guesses at hidden values, and, if configured, reads.
type auditTrail struct {
	manager *dlq.Manager
	logger  *slog.Logger
	reads   bool
	// limit limits the records of one caller, so that none fills the log; the next record has the number of those beyond.
	limit *access.Limiter

	mu   sync.Mutex
	more map[string]int
}

// The burst and the rate per second of one caller's guesses.
const (
	guessBurst = 100
	guessRate  = 0.2
	maxMore    = 1000
)

func newAuditTrail(cfg *Config) *auditTrail {
	return &auditTrail{
		manager: cfg.Manager, logger: cfg.Logger, reads: cfg.AuditReads, limit: access.NewLimiter(guessRate, guessBurst),
		more: map[string]int{},
	}
}

// refused records that a caller asked for hidden values. What it looked for is not in the record, which others can
// read.
func (t *auditTrail) refused(ctx context.Context, err *visible.RefusedError) {
	who := access.From(ctx)
	t.logger.WarnContext(ctx, "a request for hidden values was refused", "actor", who.Name, "role", who.Role.String(),
		"field", err.Field)
	detail := map[string]string{"field": err.Field, "role": who.Role.String()}
	if !t.allowed(who.Identity(), detail) {
		return
	}
	record := driver.AuditRecord{
		At: t.manager.Now(ctx), Actor: who.Name, Action: driver.ActionRefused, EntryID: err.Entry, Detail: detail,
	}
	if err := t.manager.Record(ctx, record); err != nil {
		t.logger.ErrorContext(ctx, "a refused request for hidden values could not be recorded in the audit log", "actor", who.Name,
			"error", err)
	}
}

// allowed reports whether there is room for a record, and adds how many had none.
func (t *auditTrail) allowed(identity string, detail map[string]string) bool {
	_, ok := t.limit.Allow(identity)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !ok {
		if len(t.more) < maxMore || t.more[identity] > 0 {
			t.more[identity]++
		}
		return false
	}
	if n := t.more[identity]; n > 0 {
		detail["more"] = strconv.Itoa(n)
		delete(t.more, identity)
	}
	return true
}

// read records that a caller is about to see the messages of entries. If that fails, they are not shown.
func (t *auditTrail) read(ctx context.Context, what string, entries ...int64) error {
	if !t.reads || len(entries) == 0 {
		return nil
	}
	who, at := access.From(ctx), t.manager.Now(ctx)
	records := make([]driver.AuditRecord, len(entries))
	for i, id := range entries {
		records[i] = driver.AuditRecord{
			At: at, Actor: who.Name, Action: driver.ActionRead, EntryID: id,
			Detail: map[string]string{"as": what, "role": who.Role.String()},
		}
	}
	if err := t.manager.Record(ctx, records...); err != nil {
		return fmt.Errorf("the reading could not be recorded, so nothing is shown: %w", err)
	}
	return nil
}
