package dlq

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/internal/text"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// DeadLetter stores a dead letter. It returns nil when the letter is durable, in the store or in the spool, and the
// message may be acked. After an error it may be in neither, and the message must go back to the broker. If the context
// ends while the store is working, the letter still goes to the spool. With a transaction in the context (see
// [ContextWithTx]), nil means that the letter is in the transaction, and durable once it commits.
func (l *Letters) DeadLetter(ctx context.Context, d *envelope.DeadLetter) error {
	if d == nil || d.Message == nil {
		return fmt.Errorf("dlq: dead letter: %w: no message", ErrInvalid)
	}
	shown := *d
	if at := l.storesTime(ctx, d.At); d.Collected == (envelope.Collected{}) || at.After(d.At) {
		shown.At = at // a collector has it from another machine, but no later than by its own clock
		if !d.FirstFailure.IsZero() {
			shown.FirstFailure = d.FirstFailure.Add(at.Sub(stamp(d.At)))
		}
	}
	entry := l.opts.capture(&shown) //nolint:contextcheck // pure; the message has a separate context
	if stored, err := l.putTx(ctx, entry); stored || err != nil {
		return err
	}
	attrs := []slog.Attr{
		slog.String("message_id", entry.EventID), slog.String("topic", entry.Origin.Topic),
		slog.String("handler", entry.Handler), slog.String("reason", string(entry.Reason)),
	}
	record := func() wire.Record {
		letter := entry.Detail()
		return wire.Record{Dead: &letter}
	}
	return l.keep(ctx, "dead letter", record, attrs, func(ctx context.Context) error {
		_, err := l.store.Put(ctx, entry)
		return err
	})
}

// NewEntry makes an entry of a dead letter, ready for [Store.Put]. It never fails: anything that cannot be parsed is
// left out of the columns but is still in the body, which has the original payload and headers.
func NewEntry(d *envelope.DeadLetter) *Entry {
	o := defaultOptions()
	return o.capture(d)
}

func (o *options) capture(d *envelope.DeadLetter) *Entry {
	env := d.Envelope()
	table, id := o.source(env)
	at := stamp(d.At)
	origin := d.Origin
	origin.Timestamp = origin.Timestamp.UTC().Truncate(time.Microsecond)
	e := &Entry{
		EventID:        env.MessageID(),
		EventType:      env.Event(),
		SourceTable:    table,
		SourceID:       id,
		CorrelationID:  env.CorrelationID(),
		Origin:         origin,
		Handler:        d.Handler,
		Reason:         d.Reason,
		ErrorMessage:   d.Err.Message,
		ErrorCode:      d.Err.Code,
		ErrorClass:     d.Class,
		Rule:           d.Rule,
		Attempts:       d.Attempts,
		Status:         Pending,
		Version:        1,
		RedriveBudget:  o.redriveBudget,
		SeenCount:      1,
		CreatedAt:      at,
		FirstFailureAt: at,
		DiedAt:         at,
		LastSeenAt:     at,
		ChangedAt:      at,
		Size:           int64(len(d.Message.Payload)),
	}
	// by the clock of another machine it may be later
	if first := stamp(d.FirstFailure); !d.FirstFailure.IsZero() && first.Before(at) {
		e.FirstFailureAt = first
	}
	e.Body = &Body{
		UUID:        d.Message.UUID,
		Payload:     d.Message.Payload,
		Headers:     maps.Clone(d.Message.Metadata),
		Collected:   d.Collected,
		ContentType: d.Message.Metadata.Get(envelope.KeyContentType),
		Trace:       d.Err.Trace,
		SHA256:      sha256.Sum256(d.Message.Payload),
	}
	e.Clean()
	e.EventType = cmp.Or(e.EventType, e.Origin.Topic, "unknown")
	e.Cause = Normalize(e.ErrorMessage)
	e.Fingerprint = Fingerprint(e.Handler, e.ErrorClass, e.ErrorCode, e.ErrorMessage)
	e.ChangedBy = e.DiedBy()
	e.RedriveOf, e.DeathRedrive = redriveOf(d.Message)
	e.RedriveCount = e.DeathRedrive
	e.Key = keyOf(&d.Origin, d.Handler, env.MessageID(), env.Data(), e.DeathRedrive)
	return e
}

// redriveOf reads which entry a redriven message belongs to and which of its redrives this was. Invalid headers are
// treated as not redriven: a separate dead letter is the safe choice. So is the last number that can be read, because
// the redrive after it could not be recognized.
func redriveOf(m *message.Message) (entry int64, redrive int) {
	entry, err := driver.ParseID(m.Metadata[envelope.KeyRedriveID])
	n := envelope.RedriveCount(m)
	if err != nil || n == 0 || n == envelope.MaxRetryCount {
		return 0, 0
	}
	return entry, n
}

// stamp converts a time to what a store keeps; a dead letter without one died now.
func stamp(t time.Time) time.Time {
	if t.IsZero() {
		t = time.Now()
	}
	return t.UTC().Truncate(time.Microsecond)
}

// storesTime converts a time of this process's clock to the store's, by which operators close entries: by a clock that
// is behind, a message that was sent again would have died before it was discarded.
func (l *Letters) storesTime(ctx context.Context, t time.Time) time.Time {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if ctx.Value(txKey{}) != nil || l.importer != nil && l.importer.down() {
		cancel() // neither a connection nor the store is waited for: its last answer is extrapolated
	}
	t = stamp(t)
	if ahead := time.Until(driver.Now(ctx, l.store)); ahead.Abs() >= time.Second {
		t = t.Add(ahead)
	}
	return t
}

// keep writes to the store or, if that fails, a record to the spool.
func (l *Letters) keep(
	ctx context.Context, what string, record func() wire.Record, attrs []slog.Attr, write func(context.Context) error,
) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return fmt.Errorf("dlq: %s: %w", what, ErrClosed)
	}
	// While the store is known to be down, callers do not wait for it: the importer polls it.
	storeErr := errStoreDown
	if l.importer == nil || !l.importer.down() {
		trying, cancel := context.WithTimeout(ctx, l.opts.storeTimeout)
		defer cancel()
		storeErr = write(trying)
	}
	if storeErr == nil {
		return nil
	}
	if l.spool == nil {
		return fmt.Errorf("dlq: %s: %w", what, storeErr)
	}
	line, err := encodeRecord(record())
	if err == nil {
		err = l.spool.Append(context.WithoutCancel(ctx), line)
	}
	attrs = append(attrs, slog.String("record", what), slog.Any("error", storeErr))
	if err != nil {
		attrs = append(attrs, slog.Any("spool_error", err))
		l.opts.logger.LogAttrs(ctx, envelope.LevelCritical, "a dead letter could neither be stored nor spooled",
			attrs...)
		return fmt.Errorf("dlq: %s: store: %w; spool: %w", what, storeErr, err)
	}
	attrs = append(attrs, slog.String("spool", l.spool.Dir()))
	l.opts.logger.LogAttrs(ctx, envelope.LevelCritical, "a dead letter was spooled, because the store failed",
		attrs...)
	l.importer.wake(storeErr)
	return nil
}

var errStoreDown = errors.New("the store does not answer; it is retried in the background")

// Redriven records that the consumer handled the redriven message of an entry: the entry is RESOLVED, by "redrive". It
// returns nil when that is durable, in the store or in the spool, and also when the outcome is known already or the
// entry belongs to another store: a failure to record a success must not turn it into a failure.
func (l *Letters) Redriven(ctx context.Context, r envelope.Redriven) error {
	id, err := driver.ParseID(r.EntryID)
	if err != nil || r.Number < 1 {
		l.opts.logger.WarnContext(ctx, "a redriven message has an invalid entry or redrive number",
			"entry_id", r.EntryID, "redrive", r.Number, "message_id", r.MessageID)
		return nil //nolint:nilerr // see the comment: not ours
	}
	outcome := wire.Redriven{
		ID: id, MessageID: text.Clean(r.MessageID, text.MaxName), Topic: text.Clean(r.Topic, text.MaxName),
		Consumer: text.Clean(r.Consumer, text.MaxName), Number: r.Number, At: l.storesTime(ctx, r.At),
	}
	attrs := []slog.Attr{slog.Int64("entry_id", id), slog.String("message_id", r.MessageID)}
	return l.keep(ctx, "redrive outcome", func() wire.Record { return wire.Record{Redriven: &outcome} }, attrs,
		func(ctx context.Context) error { return l.outcomes.put(ctx, l, outcome) })
}

// maxOutcomes is the number of outcomes recorded in one transaction.
const maxOutcomes = 500

// outcomes batches successes that consumers report at the same time into one change: a transaction costs a disk sync
// however small it is, and after a bulk redrive they arrive by the thousand. A caller that finds no write in progress
// starts one at once, on its own goroutine, and also writes what accumulates meanwhile; most outcomes arrive alone, and
// need no goroutine or batcher.
type outcomes struct {
	mu      sync.Mutex
	waiting []*outcomeCall
	writing bool
}

type outcomeCall struct {
	outcome wire.Redriven
	done    chan error
}

// put returns when the outcome is in the store.
func (o *outcomes) put(ctx context.Context, l *Letters, outcome wire.Redriven) error {
	call := &outcomeCall{outcome, make(chan error, 1)}
	o.mu.Lock()
	o.waiting = append(o.waiting, call)
	lead := !o.writing
	o.writing = true
	o.mu.Unlock()
	if lead {
		// A caller that gives up does not stop a write that others share.
		o.write(context.WithoutCancel(ctx), l)
	}
	select {
	case err := <-call.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// write writes until no caller waits, but only a few batches on the leading caller's goroutine, then on another one.
func (o *outcomes) write(ctx context.Context, l *Letters) {
	const batches = 4
	for n := 1; ; n++ {
		o.mu.Lock()
		batch := o.waiting[:min(len(o.waiting), maxOutcomes)]
		o.waiting = o.waiting[len(batch):]
		if len(batch) == 0 {
			o.writing = false
			o.mu.Unlock()
			return
		}
		o.mu.Unlock()
		if n > batches {
			go func() { // bounded: it ends when no caller waits
				o.record(ctx, l, batch)
				o.write(ctx, l)
			}()
			return
		}
		o.record(ctx, l, batch)
	}
}

func (o *outcomes) record(ctx context.Context, l *Letters, batch []*outcomeCall) {
	ctx, cancel := context.WithTimeout(ctx, l.opts.storeTimeout)
	defer cancel()
	list := make([]wire.Redriven, len(batch))
	for i, call := range batch {
		list[i] = call.outcome
	}
	results, err := l.store.Change(ctx, succeeded(list...))
	for i, call := range batch {
		if err == nil {
			call.done <- outcomeError(ctx, call.outcome, results[i].Err, l.opts.logger)
		} else {
			call.done <- err
		}
	}
}

// outcomeError is the store's answer to an outcome; a refusal for good is logged and is not an error.
func outcomeError(ctx context.Context, outcome wire.Redriven, err error, logger *slog.Logger) error {
	switch {
	case errors.Is(err, ErrConflict): // closed already: the same success reported twice, or an operator was faster
		logger.DebugContext(ctx, "redrive outcome changes nothing", "entry_id", outcome.ID, "error", err)
		return nil
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrInvalid): // purged in the meantime, or another store's entry
		logger.WarnContext(ctx, "redrive outcome without an entry", "entry_id", outcome.ID,
			"message_id", outcome.MessageID, "error", err)
		return nil
	default:
		return err
	}
}

// succeeded is the change that records outcomes. Its time is the latest of theirs.
func succeeded(list ...wire.Redriven) driver.Change {
	c := driver.Change{Action: driver.ActionSucceed, Actor: "redrive"}
	for _, r := range list {
		c.IDs = append(c.IDs, r.ID)
		c.Reports = append(c.Reports, driver.Report{
			MessageID: r.MessageID, Topic: r.Topic, Consumer: r.Consumer, Number: r.Number,
		})
		if r.At.After(c.At) {
			c.At = r.At
		}
	}
	return c
}
