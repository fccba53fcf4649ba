package envelope

import (
	"cmp"
	"errors"
	"maps"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Failure is one failed attempt, as RecordFailure writes it into a message.
type Failure struct {
	// Err is the error as it is transmitted. It is bounded and made valid UTF-8 when it is recorded.
	Err Error
	// Class is the error's Go type, for people and for grouping.
	Class string
	// At is when the attempt failed. Defaults to the current time.
	At time.Time
	// Retry is the new retry_count, the number of failed attempts including this one, clamped to [0, MaxRetryCount].
	Retry int

	// Reason is why the message will not be retried. Set it only for a dead letter: the compatibility headers
	// consumer_error and Watermill's four *_poisoned are then written too.
	Reason Reason
	// Rule is the rule that classified the error. Only written with a Reason.
	Rule string
	// Handler, Subscriber and Topic default to what Watermill's router put into the message's context. Only written
	// with a Reason.
	Handler, Subscriber, Topic string
}

// RecordFailure returns a copy of the message, without its context and acknowledgement, that records one more failure:
// the error, the retry count and the first failure are set in the message's own mode. In a structured body only the
// values of error and retry_count change; in binary mode the payload is the same slice. A foreign message gets its
// identity now, so that it keeps it. A malformed body is left unchanged, and the failure goes into headers.
//
// Headers that a broker made, requests for a first-delivery delay and an earlier not-before are dropped; all others are
// kept. m itself is not changed.
func RecordFailure(m *message.Message, f Failure) *message.Message {
	f.Retry = min(max(0, f.Retry), MaxRetryCount)
	if f.At.IsZero() {
		f.At = time.Now()
	}
	f.Err = f.Err.bounded()

	var s body
	out, inBody := s.forward(m, f.At)
	if inBody {
		keepInvalidCount(out.Metadata, &s)
		out.Payload = s.splice(s.set(s.err, "error", f.Err.json()),
			s.set(s.retry, "retry_count", strconv.AppendInt(nil, int64(f.Retry), 10)))
		syncHeaders(out.Metadata, f.Retry)
	} else {
		keepInvalidCount(out.Metadata, nil)
		out.Metadata[KeyRetryCount] = strconv.Itoa(f.Retry)
		f.Err.setHeaders(out.Metadata)
	}
	f.setHeaders(out.Metadata, m)
	return out
}

// RecordDeferral returns a copy of the message that waits without consuming an attempt. It records only since when the
// message has been deferred, once; a time in the future, which would never pass, counts as now. The next RecordFailure
// ends the series of deferrals. m itself is not changed.
func RecordDeferral(m *message.Message, at time.Time) *message.Message {
	var s body
	out, _ := s.forward(m, at)
	if since, ok := timeHeader(out.Metadata, KeyDeferredSince); !ok || since.After(at) {
		out.Metadata[KeyDeferredSince] = formatTime(at)
	}
	return out
}

// StartOver removes from m what it has copied from the message that its handler received: the attempts, deferrals and
// redrive of that handler's consumer. The next one would count them as its own, and dead-letter m at its first failure.
// A retry count above the received one is the handler's own, and stays. A pipeline calls StartOver for the messages
// that a handler returns; a handler that publishes a copy on its own calls it with what [ReadControl] returns for the
// received one.
func StartOver(m *message.Message, received *Control) {
	_, deferred := m.Metadata[KeyDeferredSince]
	if !deferred && received.RetryCount == 0 && !received.RetryCountInvalid && received.RedriveID == "" {
		return
	}
	m.Metadata = maps.Clone(m.Metadata) // others may share it
	delete(m.Metadata, KeyDeferredSince)
	redriven := received.RedriveID != "" && m.Metadata[KeyRedriveID] == received.RedriveID
	if redriven {
		for _, key := range [...]string{KeyRedriveID, KeyRedriveCount, KeyRedriveRun} {
			delete(m.Metadata, key)
		}
	}
	var s body
	mode, err := s.read(m)
	inBody := mode == Structured && err == nil
	if !inBody {
		s = body{}
	}
	switch n, valid := retryCount(m.Metadata, &s); {
	case n > received.RetryCount, !valid && !received.RetryCountInvalid: // set by the handler
		return
	case n == 0 && valid && !redriven: // not a copy
		return
	}
	for _, key := range [...]string{
		KeyRetryCount, KeyInvalidRetryCount, KeyFirstFailure, KeyErrorMessage, KeyErrorCode, KeyErrorTrace, KeyErrorClass,
		KeyTraceLink,
	} {
		delete(m.Metadata, key)
	}
	if inBody {
		m.Payload = s.splice(s.set(s.err, "error", []byte("null")), s.set(s.retry, "retry_count", []byte("0")))
	}
}

// FirstFailure returns when the message first failed, and whether it ever did.
func FirstFailure(m *message.Message) (time.Time, bool) {
	return timeHeader(m.Metadata, KeyFirstFailure)
}

// DeferredSince returns since when the message has been deferred without an attempt in between, and whether it is
// deferred.
func DeferredSince(m *message.Message) (time.Time, bool) {
	return timeHeader(m.Metadata, KeyDeferredSince)
}

// copyToPublish copies a message, with room for the headers that a failure adds, at most 20. The payload is shared.
func copyToPublish(m *message.Message) *message.Message {
	out := message.NewMessage(m.UUID, m.Payload)
	out.Metadata = make(message.Metadata, len(m.Metadata)+20)
	for key, value := range m.Metadata {
		switch key {
		case KeyDelay, KeyNotBefore, KeyWatermillDelayedFor, KeyWatermillDelayedUntil:
		default:
			if !IsBrokerMade(key) {
				out.Metadata[key] = value
			}
		}
	}
	if d, _ := originalDelay(m.Metadata); d > 0 && out.Metadata[KeyOriginalDelay] == "" {
		out.Metadata[KeyOriginalDelay] = formatMillis(d)
	}
	return out
}

// forward reads and copies m, and gives the copy its identity, which the next delivery could not derive: it has another
// position. It reports whether the copy's state is in s.
func (s *body) forward(m *message.Message, at time.Time) (out *message.Message, inBody bool) {
	mode, err := s.read(m)
	out = copyToPublish(m)
	switch {
	case mode == Binary:
		adopt(out.Metadata, m, at)
	case err != nil || s.text(s.id) == "":
		adoptID(out.Metadata, m)
	}
	return out, mode == Structured && err == nil
}

// setHeaders writes the fields that the body does not have.
func (f *Failure) setHeaders(md message.Metadata, m *message.Message) {
	delete(md, KeyDeferredSince)
	setOrDelete(md, KeyErrorClass, headerText(f.Class, maxName))
	if first, ok := timeHeader(md, KeyFirstFailure); !ok || first.After(f.At) {
		md[KeyFirstFailure] = formatTime(f.At)
	}
	if f.Reason == "" {
		return
	}
	ctx := m.Context()
	md[KeyDeadLetterReason] = headerText(string(f.Reason), maxName)
	setOrDelete(md, KeyDeadLetterRule, headerText(f.Rule, maxName))
	md[KeyConsumerError] = headerText(f.Err.Message, MaxErrorMessage)
	md[KeyPoisonReason] = md[KeyConsumerError]
	md[KeyPoisonTopic] = headerText(cmp.Or(f.Topic, message.SubscribeTopicFromCtx(ctx)), maxName)
	md[KeyPoisonHandler] = headerText(cmp.Or(f.Handler, message.HandlerNameFromCtx(ctx)), maxName)
	md[KeyPoisonSubscriber] = headerText(cmp.Or(f.Subscriber, message.SubscriberNameFromCtx(ctx)), maxName)
}

// setHeaders writes the error in binary mode; headerError reads it back.
func (e Error) setHeaders(md message.Metadata) {
	md[KeyErrorMessage] = escapeText(e.Message, MaxErrorMessage, true)
	setOrDelete(md, KeyErrorCode, escapeText(e.Code, maxName, true))
	setOrDelete(md, KeyErrorTrace, escapeText(e.Trace, MaxErrorTrace, true))
}

// headerError reads the error in binary mode; nil without one.
func headerError(md message.Metadata) *Error {
	text, failed := md[KeyErrorMessage]
	code, trace := md[KeyErrorCode], md[KeyErrorTrace]
	if !failed && code == "" && trace == "" {
		return nil
	}
	return &Error{Message: unescapeText(text), Code: unescapeText(code), Trace: unescapeText(trace)}
}

// syncHeaders updates the headers that repeat fields of a structured body.
func syncHeaders(md message.Metadata, retry int) {
	if _, ok := md[KeyRetryCount]; ok {
		md[KeyRetryCount] = strconv.Itoa(retry)
	}
	dropErrorHeaders(md)
}

// keepInvalidCount saves an unreadable counter before it is overwritten. s is nil in binary mode.
func keepInvalidCount(md message.Metadata, s *body) {
	text, ok := md[KeyRetryCount]
	if _, valid := parseCount(text); !ok || valid {
		if s == nil {
			return
		}
		if _, valid := s.retryCount(); valid {
			return
		}
		text = s.retryText()
	}
	md[KeyInvalidRetryCount] = headerText(text, maxName)
}

func setOrDelete(md message.Metadata, key, value string) {
	if value == "" {
		delete(md, key)
		return
	}
	md[key] = value
}

// ErrMalformed is wrapped by errors about a message whose body claims to be an envelope but is unreadable. The message
// itself is untouched, so that its exact bytes can be dead-lettered.
var ErrMalformed = errors.New("envelope: malformed structured body")

// Error is the last error of a message, as it is transmitted. Earlier ones are not kept.
type Error struct {
	// Message is the error's text, at most MaxErrorMessage bytes once recorded.
	Message string `json:"message"`
	// Code is a short code of the user's choice, a string even if it is a number ("500").
	Code string `json:"code"`
	// Trace is a stack trace, at most MaxErrorTrace bytes once recorded.
	Trace string `json:"trace"`
}

// bounded returns the error as it may be transmitted: limited in size and valid UTF-8.
func (e Error) bounded() Error {
	return Error{
		Message: boundJSON(e.Message, MaxErrorMessage),
		Code:    boundJSON(e.Code, maxName),
		Trace:   boundJSON(e.Trace, MaxErrorTrace),
	}
}

// json returns the error as the JSON object of the schema.
func (e Error) json() []byte {
	text, _ := encodeJSON(e) // strings always have a JSON form
	return text
}

// Reason is why a message is dead.
type Reason string

// The reasons for which a message is dead-lettered.
const (
	ReasonPermanent Reason = "permanent" // the error was classified as not worth retrying
	ReasonExhausted Reason = "exhausted" // all attempts were used up
	ReasonMalformed Reason = "malformed" // the body claims to be an envelope but cannot be read
	ReasonExpired   Reason = "expired"   // the message exceeded its maximum age
	ReasonPanic     Reason = "panic"     // the handler panicked, in the last of its attempts if panics are retried
	ReasonManual    Reason = "manual"    // a person asked for it
	ReasonCrash     Reason = "crash"     // it was in a handler each time the process died
)

// ErrTooLarge reports that a broker or a dead letter sink never has room for a message of this size: if it prevents a
// retry, the message goes to the first dead letter sink with room.
var ErrTooLarge = errors.New("message is larger than the broker takes")

// DeadLetter is a message that will not be retried automatically, with everything known about the reason. It is handed
// to dead letter sinks, which must not modify it.
type DeadLetter struct {
	// Message is the message to store or publish: its payload is exact, byte for byte, and the failure is recorded in it.
	Message *message.Message
	// Reason is why it is dead.
	Reason Reason
	// Err is the last error as it is transmitted.
	Err Error
	// Class is the Go type of the last error.
	Class string
	// Rule is the rule that classified the error.
	Rule string
	// Handler is the name of the handler that failed.
	Handler string
	// Origin is where the message came from and where a redrive sends it.
	Origin Origin
	// Collected is where a collector found it; zero for a dead letter reported by its consumer.
	Collected Collected
	// Attempts is how many times the handler ran.
	Attempts int
	// FirstFailure is when the first attempt failed.
	FirstFailure time.Time
	// At is when the message became a dead letter.
	At time.Time
	// Cause is the handler's error, for sinks in this process. It may be nil, for example after a restart.
	Cause error
}

// Collected is where a collector found a dead letter, as the collector knows it and not as the message claims.
type Collected struct {
	// Broker is the name of the broker, From the queue or topic there.
	Broker, From string
	// Format is the name of the dead letter's format.
	Format string
}

// Envelope returns the message as an envelope. It never fails: a malformed body becomes the data of a binary envelope.
func (d *DeadLetter) Envelope() Envelope {
	if d.Message == nil {
		return Envelope{}
	}
	e, _ := FromMessage(d.Message) // on an error it still returns the foreign view of the message
	return e
}

// Redrive identifies the dead letter from which a message is sent back.
type Redrive struct {
	// ID is the id of the dead letter's entry; the outcome of the redriven message closes that entry.
	ID string
	// Count is how often the message was redriven, including this time.
	Count int
	// Run is the id of the bulk run, or "".
	Run string
}

// PrepareRedrive returns a copy of a dead letter that is ready to go back to its consumer: its retry count restarts at
// 0, its message id, data, metadata, original delay and last error stay, and the marks of a dead letter are removed. m
// is not changed.
func PrepareRedrive(m *message.Message, r Redrive) *message.Message {
	out := copyToPublish(m)
	for _, key := range [...]string{
		KeyRetryCount, KeyInvalidRetryCount, KeyFirstFailure, KeyDeferredSince, KeyDeadLetterReason, KeyDeadLetterRule,
		KeyConsumerError, KeyPoisonReason, KeyPoisonTopic, KeyPoisonHandler, KeyPoisonSubscriber, KeyRedriveRun,
	} {
		delete(out.Metadata, key)
	}
	var s body
	if mode, err := s.read(m); mode == Structured && err == nil {
		out.Payload = s.splice(s.set(s.retry, "retry_count", []byte("0")))
	}
	out.Metadata[KeyRedriveID] = headerText(r.ID, maxName)
	out.Metadata[KeyRedriveCount] = strconv.Itoa(r.Count)
	setOrDelete(out.Metadata, KeyRedriveRun, headerText(r.Run, maxName))
	return out
}

// RedriveCount returns how often the message was redriven; 0 if never, or if the count cannot be read.
func RedriveCount(m *message.Message) int {
	n, valid := parseCount(m.Metadata[KeyRedriveCount])
	if !valid {
		return 0
	}
	return n
}

// Redriven is a success reported by a consumer: it has handled a redriven message.
type Redriven struct {
	// EntryID is the dead letter entry that the message claims to be redriven from, and Number the redrive of that entry.
	EntryID string
	Number  int
	// MessageID, Topic and Consumer are the message's. They match the entry's, unless the message has copied another one's
	// headers.
	MessageID, Topic, Consumer string
	// At is when it succeeded.
	At time.Time
}

// RedrivenBy is the report of a consumer that has handled m, delivered from origin.
func RedrivenBy(m *message.Message, origin Origin, at time.Time) Redriven {
	e, _ := FromMessage(m) // on an error it is the foreign view, which has the headers
	return Redriven{
		EntryID: m.Metadata[KeyRedriveID], Number: RedriveCount(m), MessageID: e.MessageID(),
		Topic: origin.Topic, Consumer: origin.Consumer, At: at,
	}
}
