package envelope

import (
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// MaxRetryCount is the largest valid retry counter.
const MaxRetryCount = 1_000_000

// MaxDelay is the longest delay that a message may ask for. Longer ones are clamped to it.
const MaxDelay = 30 * 24 * time.Hour

// Control is what a pipeline needs to know about a message before it runs the handler. It is read without decoding the
// payload.
type Control struct {
	// Mode is where the control data was found.
	Mode Mode
	// MessageID is what Identify returns; "" when nothing identifies the message.
	MessageID string
	// RetryCount is the number of failed attempts so far; 0 if RetryCountInvalid.
	RetryCount int
	// RetryCountInvalid reports a counter that is not a decimal number of 0 to MaxRetryCount. Such a message must get one
	// run and no retries: if its counter were treated as 0, it could loop forever.
	RetryCountInvalid bool
	// Clamped reports that the original delay was out of range or unreadable, so that it can be logged.
	Clamped bool
	// OriginalDelay is the first-delivery delay, the base of the backoff, within [0, MaxDelay]; 0 without one.
	OriginalDelay time.Duration
	// RedriveID is the id of the dead letter entry from which the message was redriven, or "".
	RedriveID string
	// RedriveCount is how often it was redriven, 0 without a RedriveID.
	RedriveCount int
}

// ReadControl reads the control data of a message in either mode. It makes no allocation when the message is in binary
// mode and has an id. The error wraps ErrMalformed: the body claims to be an envelope but is unreadable; the headers'
// control data are returned nevertheless. It never panics, whatever the message contains, and does not change it.
func ReadControl(m *message.Message) (Control, error) {
	var c Control
	err := c.Read(m)
	return c, err
}

// Read is [ReadControl] into c, which must be zero.
func (c *Control) Read(m *message.Message) error {
	c.OriginalDelay, c.Clamped = originalDelay(m.Metadata)
	if c.RedriveID = m.Metadata[KeyRedriveID]; c.RedriveID != "" {
		c.RedriveCount = RedriveCount(m)
	}

	if declaredBinary(m.Metadata) { // most messages: skip clearing the space for a body's positions
		c.MessageID = headerID(m)
		c.setRetryCount(retryCount(m.Metadata, nil))
		return nil
	}
	return c.readBody(m)
}

// readBody reads the body of a message that may be structured.
func (c *Control) readBody(m *message.Message) error {
	var s body
	mode, err := s.read(m)
	if mode == Binary || err != nil {
		c.MessageID = headerID(m)
		c.setRetryCount(retryCount(m.Metadata, nil))
		return err
	}
	c.Mode = Structured
	c.MessageID = s.messageID(m)
	c.setRetryCount(retryCount(m.Metadata, &s))
	return nil
}

func (c *Control) setRetryCount(n int, valid bool) { c.RetryCount, c.RetryCountInvalid = n, !valid }

// retryCount reads the counter: if both a structured body and a header have it, the larger one, so that a stale one
// does not make a message loop. If either cannot be read, the counter is invalid. s is nil in binary mode.
func retryCount(md message.Metadata, s *body) (n int, valid bool) {
	valid = true
	if text, ok := md[KeyRetryCount]; ok {
		n, valid = parseCount(text)
	}
	if s != nil && valid {
		inBody, ok := s.retryCount()
		n, valid = max(n, inBody), ok
	}
	if !valid {
		return 0, false
	}
	return n, true
}

// messageID returns the body's id; if that is empty or null, one derived from the headers.
func (s *body) messageID(m *message.Message) string {
	if id := s.text(s.id); id != "" {
		return carriable(id)
	}
	return headerID(m)
}

// parseCount reads a decimal number of 0 to MaxRetryCount, digits only.
func parseCount(text string) (n int, valid bool) {
	wide, valid := parseDigits(text, MaxRetryCount)
	return int(wide), valid && wide <= MaxRetryCount
}

// parseDigits reads a string of decimal digits. A number above limit is returned as limit + 1.
func parseDigits(text string, limit int64) (n int64, valid bool) {
	for i := range len(text) {
		d := text[i] - '0'
		if d > 9 {
			return 0, false
		}
		if n = n*10 + int64(d); n > limit {
			n = limit + 1
		}
	}
	return n, text != ""
}

// SetDelay asks the publisher to deliver the message for the first time after d, a business delay such as "remind in 10
// s". It writes x-delay and, unless already present, x-original-delay, the base of the backoff, which no retry changes.
// d is clamped to [0, MaxDelay] and truncated to whole milliseconds.
func SetDelay(m *message.Message, d time.Duration) {
	d, _ = clampDelay(d)
	setHeader(m, KeyDelay, formatMillis(d))
	if m.Metadata[KeyOriginalDelay] == "" {
		setHeader(m, KeyOriginalDelay, formatMillis(d))
	}
}

// TakeDelay is the publisher's counterpart of SetDelay: it returns the first-delivery delay that the message asks for,
// in our header or in those of Watermill's components/delay, and whether it asks for one. It removes the request from
// the message, so that it is not delayed again downstream, and records it as the original delay if there is none yet.
// The delay is within [0, MaxDelay]; an unreadable request is removed and ignored.
func TakeDelay(m *message.Message) (time.Duration, bool) {
	d, asked, _ := requestedDelay(m.Metadata)
	delete(m.Metadata, KeyDelay)
	delete(m.Metadata, KeyWatermillDelayedFor)
	delete(m.Metadata, KeyWatermillDelayedUntil)
	if asked && m.Metadata[KeyOriginalDelay] == "" {
		setHeader(m, KeyOriginalDelay, formatMillis(d))
	}
	return d, asked
}

// requestedDelay reads the first-delivery delay that a message asks for.
func requestedDelay(md message.Metadata) (d time.Duration, asked, clamped bool) {
	if text := md[KeyDelay]; text != "" {
		d, ok, clamped := parseMillis(text)
		return d, ok, clamped
	}
	if text := md[KeyWatermillDelayedFor]; text != "" {
		if d, err := time.ParseDuration(text); err == nil {
			d, clamped = clampDelay(d)
			return d, true, clamped
		}
		clamped = true
	}
	if text := md[KeyWatermillDelayedUntil]; text != "" {
		if until, err := time.Parse(time.RFC3339, text); err == nil {
			d, over := clampDelay(time.Until(until))
			return d, true, clamped || over && d > 0 // a time in the past is not a fault
		}
		clamped = true
	}
	return 0, false, clamped
}

// originalDelay reads the base of the backoff. A foreign producer's message that was not published through one of our
// publishers may still hold Watermill's request, which then is the original delay.
func originalDelay(md message.Metadata) (d time.Duration, clamped bool) {
	if text, ok := md[KeyOriginalDelay]; ok {
		d, _, clamped = parseMillis(text)
		return d, clamped
	}
	if text, ok := md[KeyWatermillDelayedFor]; ok {
		parsed, err := time.ParseDuration(text)
		if err != nil {
			return 0, true
		}
		return clampDelay(parsed)
	}
	if text, ok := md[KeyDelay]; ok { // a producer in another language has asked the broker directly
		d, _, clamped = parseMillis(text)
		return d, clamped
	}
	return 0, false
}

// parseMillis reads a decimal number of milliseconds. It reports whether the number is valid and whether it was out of
// range.
func parseMillis(text string) (d time.Duration, valid, clamped bool) {
	ms, valid := parseDigits(text, MaxDelay.Milliseconds())
	if !valid {
		return 0, false, true
	}
	d, clamped = clampDelay(time.Duration(ms) * time.Millisecond)
	return d, true, clamped
}

func clampDelay(d time.Duration) (time.Duration, bool) {
	within := min(max(d, 0), MaxDelay)
	return within, within != d
}

func formatMillis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// setHeader writes a header of a message that may have been created without NewMessage.
func setHeader(m *message.Message, key, value string) {
	if m.Metadata == nil {
		m.Metadata = make(message.Metadata)
	}
	m.Metadata[key] = value
}
