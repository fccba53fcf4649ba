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
	// limit limits the records of each caller, so that no caller can fill the log. omitted counts those beyond the limit
	// for the caller's next record.
	limit *access.Limiter

	mu      sync.Mutex
	omitted map[string]int
}

// The burst and the rate per second of one caller's guesses.
const (
	guessBurst = 100
	guessRate  = 0.2
	maxOmitted = 1000 // callers
)

// refused records that a caller asked for hidden values, but not for which ones: others can read the record.
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

// allowed reports whether the caller may have another record, and adds to its detail how many were omitted.
func (t *auditTrail) allowed(identity string, detail map[string]string) bool {
	_, ok := t.limit.Allow(identity)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !ok {
		if len(t.omitted) < maxOmitted || t.omitted[identity] > 0 {
			t.omitted[identity]++
		}
		return false
	}
	if n := t.omitted[identity]; n > 0 {
		detail["more"] = strconv.Itoa(n)
		delete(t.omitted, identity)
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
		return fmt.Errorf("the read could not be recorded, so nothing is shown: %w", err)
	}
	return nil
}
