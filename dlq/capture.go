package dlq

import (
	"crypto/sha256"
	"maps"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

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
	if !d.FirstFailure.IsZero() {
		e.FirstFailureAt = stamp(d.FirstFailure)
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
	if e.EventType == "" {
		e.EventType = e.Origin.Topic
	}
	if e.EventType == "" {
		e.EventType = "unknown"
	}
	e.Cause = Normalize(e.ErrorMessage)
	e.Fingerprint = Fingerprint(e.Handler, e.ErrorClass, e.ErrorCode, e.ErrorMessage)
	e.ChangedBy = e.DiedBy()
	e.RedriveOf, e.DeathRedrive = redriveOf(d.Message.Metadata)
	e.RedriveCount = e.DeathRedrive
	e.Key = keyOf(&d.Origin, d.Handler, env.MessageID(), env.Data(), e.DeathRedrive)
	return e
}

// redriveOf reads which entry a redriven message belongs to and which of its redrives this was. Invalid headers are
// treated as not redriven: a separate dead letter is the safe choice.
func redriveOf(headers map[string]string) (entry int64, redrive int) {
	entry, err := driver.ParseID(headers[envelope.KeyRedriveID])
	if err != nil {
		return 0, 0
	}
	n, err := strconv.ParseUint(headers[envelope.KeyRedriveCount], 10, 31)
	if err != nil || n == 0 {
		return 0, 0
	}
	return entry, int(n)
}

// stamp converts a time to what a store keeps; a dead letter without one died now.
func stamp(t time.Time) time.Time {
	if t.IsZero() {
		t = time.Now()
	}
	return t.UTC().Truncate(time.Microsecond)
}
