package dlq

import (
	"crypto/sha256"
	"maps"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/envelope"
)

// NewEntry makes an entry of a dead letter, ready for [Store.Put]. It never fails: whatever cannot be read is left out of the
// columns and is still in the body, which has the payload and the headers as they are.
func NewEntry(d *envelope.DeadLetter) *Entry {
	o := defaultOptions()
	return o.capture(d)
}

func (o *options) capture(d *envelope.DeadLetter) *Entry {
	env := d.Envelope()
	table, id := o.source(env)
	at := stamp(d.At)
	origin := d.Origin
	for _, name := range []*string{&origin.Broker, &origin.Topic, &origin.Consumer, &origin.Exchange, &origin.Position} {
		*name = clean(*name, maxName)
	}
	origin.Timestamp = origin.Timestamp.UTC().Truncate(time.Microsecond)
	e := &Entry{
		EventID:        clean(env.MessageID(), maxName),
		EventType:      clean(env.Event(), maxName),
		SourceTable:    clean(table, maxName),
		SourceID:       clean(id, maxName),
		CorrelationID:  clean(env.CorrelationID(), maxName),
		Origin:         origin,
		Handler:        clean(d.Handler, maxName),
		Reason:         d.Reason,
		ErrorMessage:   clean(d.Err.Message, maxErrorText),
		ErrorCode:      clean(d.Err.Code, maxName),
		ErrorClass:     clean(d.Class, maxName),
		Rule:           clean(d.Rule, maxName),
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
	if e.EventType == "" {
		e.EventType = origin.Topic
	}
	if e.EventType == "" {
		e.EventType = "unknown"
	}
	e.Cause = Normalize(e.ErrorMessage)
	e.Fingerprint = Fingerprint(e.Handler, e.ErrorClass, e.ErrorCode, e.ErrorMessage)
	e.ChangedBy = e.actor()
	e.RedriveOf, e.DeathRedrive = redriveOf(d.Message.Metadata)
	e.RedriveCount = e.DeathRedrive
	e.Key = keyOf(&d.Origin, d.Handler, env.MessageID(), env.Data(), e.DeathRedrive)
	e.Body = &Body{
		UUID:        d.Message.UUID,
		Payload:     d.Message.Payload,
		Headers:     maps.Clone(map[string]string(d.Message.Metadata)),
		ContentType: clean(d.Message.Metadata.Get(envelope.KeyContentType), maxName),
		Trace:       clean(d.Err.Trace, maxTrace),
		SHA256:      sha256.Sum256(d.Message.Payload),
	}
	return e
}

// redriveOf reads which entry a redriven message belongs to and which of its redrives this was. Headers that make no sense mean
// that it was not redriven: a dead letter of its own is the safe side.
func redriveOf(headers map[string]string) (entry int64, redrive int) {
	entry, err := ParseID(headers[envelope.KeyRedriveID])
	if err != nil {
		return 0, 0
	}
	n, err := strconv.ParseUint(headers[envelope.KeyRedriveCount], 10, 31)
	if err != nil || n == 0 {
		return 0, 0
	}
	return entry, int(n)
}

// stamp is the time as a store keeps it; a dead letter without one died now.
func stamp(t time.Time) time.Time {
	if t.IsZero() {
		t = time.Now()
	}
	return t.UTC().Truncate(time.Microsecond)
}
