package envelope

import (
	"encoding/hex"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Envelope fields. In binary mode each is a header; in structured mode the body holds them under the names in the
// schema.
const (
	KeyMessageID    = "x-message-id"       // message_id, a UUID unless the producer chose otherwise
	KeyTimestamp    = "x-timestamp"        // timestamp of creation, RFC 3339 with offset
	KeyVersion      = "x-envelope-version" // version of this layout, "1.0"; its presence means binary mode
	KeySource       = "x-source"           // source, the service that created the message
	KeyQueue        = "x-queue"            // queue, the original destination; retries do not change it
	KeyRetryCount   = "x-retry-count"      // retry_count, failed attempts so far; absent means 0
	KeyErrorMessage = "x-error-message"    // error.message, at most MaxErrorMessage bytes
	KeyErrorCode    = "x-error-code"       // error.code, a string such as "500"
	KeyErrorTrace   = "x-error-trace"      // error.trace, at most MaxErrorTrace bytes
)

// State of a message's life that has no field in the body: headers in both modes.
const (
	KeyOriginalDelay = "x-original-delay" // first-delivery delay in milliseconds, written once, base of the backoff
	// first-delivery delay asked of the publisher, milliseconds; consumed by it
	KeyDelay            = "x-delay"
	KeyNotBefore        = "x-not-before"         // earliest delivery, Unix milliseconds
	KeyErrorClass       = "x-error-class"        // Go type of the last error
	KeyFirstFailure     = "x-first-failure"      // time of the first failed attempt, RFC 3339 with nanoseconds
	KeyDeferredSince    = "x-deferred-since"     // time of the first deferral in a row, RFC 3339 with nanoseconds
	KeyDeadLetterReason = "x-dead-letter-reason" // a Reason
	KeyDeadLetterRule   = "x-dead-letter-rule"   // why the error was classified as it was
	KeyConsumer         = "x-consumer"           // consumer that a retry belongs to
	KeyTopic            = "x-origin-topic"       // topic that the failing consumer subscribed to
	KeyRoutingKey       = "x-routing-key"        // AMQP routing key of the first publication
	KeyExchange         = "x-exchange"           // AMQP exchange of the first publication
	KeyEvent            = "x-event"              // event name
	KeyRedriveID        = "x-redrive-id"         // id of the dead letter entry that a redrive came from
	KeyRedriveCount     = "x-redrive-count"      // how often the message was redriven
	KeyRedriveRun       = "x-redrive-run"        // id of the bulk run, if there was one
	// span that the delivery comes from: the failed attempt before it, or the redrive
	KeyTraceLink = "x-trace-link"
	KeyKafkaKey  = "x-kafka-key" // partition key of a Kafka record
	// JSON object: types of foreign headers that were not strings; for drivers
	KeyHeaderTypes = "x-header-types"
	// identifies a publication, derived from the one before; written and removed by brokers
	KeyStage = "x-stage"
	// how often the message may have ended its process; written and removed by brokers
	KeySuspect = "x-suspect"
	// length of the payload, behind which a retry or a dead letter has headers that its broker has no room for: a JSON
	// list of [name, value], both in base64; written and removed by brokers
	KeyEnclosed          = "x-headers-after"
	KeyInvalidRetryCount = "x-retry-count-invalid" // original retry counter, if it could not be read
	// what a conversion from structured mode restores: metadata that are not text, headers that are not metadata
	KeyBodyForm        = "x-body-form"
	KeyDataContentType = "x-data-content-type" // media type of the data, while content-type is that of the body
)

// Names chosen by other systems.
const (
	KeyContentType   = "content-type"   // media type of the payload; ContentType marks a structured body
	KeyCorrelationID = "correlation_id" // Watermill's correlation id, part of the metadata
	KeyTraceParent   = "traceparent"    // W3C trace context
	KeyTraceState    = "tracestate"     // W3C trace context
	KeyConsumerError = "consumer_error" // error text of a dead letter, for nano-service consumers
	KeyCQRSName      = "name"           // Watermill's cqrs marshalers: command or event name

	KeyPoisonReason     = "reason_poisoned"     // Watermill's PoisonQueue: error text
	KeyPoisonTopic      = "topic_poisoned"      // Watermill's PoisonQueue: topic
	KeyPoisonHandler    = "handler_poisoned"    // Watermill's PoisonQueue: handler name
	KeyPoisonSubscriber = "subscriber_poisoned" // Watermill's PoisonQueue: subscriber name

	KeyWatermillDelayedFor   = "_watermill_delayed_for"   // Watermill's components/delay: a Go duration
	KeyWatermillDelayedUntil = "_watermill_delayed_until" // Watermill's components/delay: RFC 3339, whole seconds
)

// AMQP basic properties, as a driver represents them in metadata. Their prefix ensures that a property is never treated
// as a header of the same name when it is written back.
const (
	KeyAMQPPrefix          = "amqp-"
	KeyAMQPMessageID       = KeyAMQPPrefix + "message-id"
	KeyAMQPCorrelationID   = KeyAMQPPrefix + "correlation-id"
	KeyAMQPContentType     = KeyAMQPPrefix + "content-type"
	KeyAMQPContentEncoding = KeyAMQPPrefix + "content-encoding"
	KeyAMQPTimestamp       = KeyAMQPPrefix + "timestamp" // RFC 3339
	KeyAMQPType            = KeyAMQPPrefix + "type"
	KeyAMQPAppID           = KeyAMQPPrefix + "app-id"
	KeyAMQPPriority        = KeyAMQPPrefix + "priority" // decimal
	KeyAMQPReplyTo         = KeyAMQPPrefix + "reply-to"
)

// IsBrokerMade reports whether a broker made the header for its own bookkeeping (x-death, x-delivery-count, ...). Such
// a header is informational: it is never the retry counter, and it is not published again, because brokers misread
// their own headers.
func IsBrokerMade(key string) bool {
	switch key {
	case "x-death", "x-delivery-count", "x-acquired-count":
		return true
	}
	return strings.HasPrefix(key, "x-first-death-") || strings.HasPrefix(key, "x-last-death-")
}

// IsOurs reports whether this package documents the header, as its own or as another system's. All other headers belong
// to the user and pass through untouched.
func IsOurs(key string) bool {
	return isReserved(key) || key == KeyCorrelationID
}

// isReserved reports whether a header is part of the protocol and therefore not part of the envelope's metadata.
func isReserved(key string) bool {
	switch key {
	case KeyMessageID, KeyTimestamp, KeyVersion, KeySource, KeyQueue, KeyRetryCount,
		KeyErrorMessage, KeyErrorCode, KeyErrorTrace,
		KeyOriginalDelay, KeyDelay, KeyNotBefore, KeyErrorClass, KeyFirstFailure, KeyDeferredSince,
		KeyDeadLetterReason, KeyDeadLetterRule, KeyConsumer, KeyTopic, KeyRoutingKey, KeyExchange, KeyEvent,
		KeyRedriveID, KeyRedriveCount, KeyRedriveRun, KeyTraceLink, KeyKafkaKey, KeyHeaderTypes, KeyInvalidRetryCount,
		KeyStage, KeySuspect, KeyEnclosed, KeyBodyForm, KeyDataContentType,
		KeyContentType, KeyTraceParent, KeyTraceState, KeyConsumerError, KeyCQRSName,
		KeyPoisonReason, KeyPoisonTopic, KeyPoisonHandler, KeyPoisonSubscriber,
		KeyAMQPMessageID, KeyAMQPCorrelationID, KeyAMQPContentType, KeyAMQPContentEncoding, KeyAMQPTimestamp, KeyAMQPType,
		KeyAMQPAppID, KeyAMQPPriority, KeyAMQPReplyTo,
		KeyWatermillDelayedFor, KeyWatermillDelayedUntil:
		return true
	}
	return IsBrokerMade(key)
}

// MatchEvent reports whether an event name, words separated by dots, matches an AMQP topic pattern: * matches exactly
// one word, # any number of words including none. Its cost is bounded by the product of both lengths, whatever the
// pattern.
func MatchEvent(pattern, event string) bool {
	words := strings.Split(event, ".")
	// reached[i] reports whether the pattern so far can match the first i words.
	reached := make([]bool, len(words)+1)
	reached[0] = true
	for part := range strings.SplitSeq(pattern, ".") {
		if part == "#" {
			for i := range words {
				reached[i+1] = reached[i+1] || reached[i]
			}
			continue
		}
		for i := len(words); i > 0; i-- {
			reached[i] = reached[i-1] && (part == "*" || part == words[i-1])
		}
		reached[0] = false
	}
	return reached[len(words)]
}

// TraceID returns the trace id from traceparent in a message's headers, 32 hex digits, or "" without one.
func TraceID(headers map[string]string) string {
	parts := strings.Split(headers[KeyTraceParent], "-")
	if len(parts) < 4 || len(parts[0]) != 2 || len(parts[1]) != 32 || strings.Trim(parts[1], "0") == "" {
		return ""
	}
	if _, err := hex.DecodeString(parts[1]); err != nil {
		return ""
	}
	return strings.ToLower(parts[1])
}

// Limits of the texts that this package writes into headers. A header frame above 128 KiB closes an AMQP connection,
// and a Kafka record near its limit must still be dead-letterable, so every text is bounded and all of them together
// stay below MaxHeaders.
const (
	MaxErrorMessage = 1 << 10  // bytes of an error's message
	MaxErrorTrace   = 4 << 10  // bytes of an error's trace
	MaxHeaders      = 16 << 10 // bytes of all headers that this package writes, names included
	maxName         = 255      // bytes of an id, a code, a class or any other name
)

// boundText returns s as valid UTF-8 of at most limit bytes. A longer text is cut at a rune boundary and marked as cut.
func boundText(s string, limit int) string {
	// An error may be many megabytes long: clean only the part that may stay, and a last rune that the marker replaces.
	clean := strings.ToValidUTF8(s[:min(len(s), limit+utf8.UTFMax)], string(utf8.RuneError))
	if len(s) <= limit && len(clean) <= limit {
		return clean
	}
	marker := "... [cut, " + strconv.Itoa(len(s)) + " bytes in all]"
	end := max(0, min(len(clean), limit-len(marker)))
	for end > 0 && end < len(clean) && !utf8.RuneStart(clean[end]) {
		end--
	}
	return clean[:end] + marker
}

// boundJSON is boundText for a text that may be in a body, where JSON writes up to six bytes for one: it has at most
// twice the limit there.
func boundJSON(s string, limit int) string {
	text := boundText(s, limit)
	for n := limit; len(appendString(nil, text)) > 2*limit+len(`""`); {
		n /= 2
		text = boundText(s, n)
	}
	return text
}

// headerText returns s bounded and on one line, for a header that is only displayed: control characters become escapes,
// so that they cannot split a log line or an HTTP response made from the header.
func headerText(s string, limit int) string {
	return escapeText(boundText(s, limit), limit, false)
}

// escapeText escapes control characters, and the backslash if unescapeText is to reverse it. If the result exceeds the
// limit, it is cut between two runes and ends in three dots.
func escapeText(s string, limit int, reversible bool) string {
	plain := func(r rune) bool { return r >= ' ' && r != 0x7f && (r != '\\' || !reversible) }
	if strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	const cut = "..."
	b := make([]byte, 0, len(s)+16)
	kept := 0
	for _, r := range s {
		if len(b)+len(cut) <= limit {
			kept = len(b)
		}
		switch {
		case plain(r):
			b = utf8.AppendRune(b, r)
		case r == '\\':
			b = append(b, `\\`...)
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\t':
			b = append(b, `\t`...)
		default:
			b = append(b, `\x`...)
			b = append(b, hexDigits[r>>4], hexDigits[r&15])
		}
		if len(b) > limit {
			return string(append(b[:kept], cut...))
		}
	}
	return string(b)
}

// unescapeText reverses escapeText. An unknown escape stays unchanged: escapeText did not write it.
func unescapeText(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b = append(b, s[i])
			continue
		}
		i++
		switch s[i] {
		case '\\':
			b = append(b, '\\')
		case 'n':
			b = append(b, '\n')
		case 'r':
			b = append(b, '\r')
		case 't':
			b = append(b, '\t')
		case 'x':
			if i+2 < len(s) {
				if v, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil && v < utf8.RuneSelf {
					b = append(b, byte(v))
					i += 2
					continue
				}
			}
			b = append(b, '\\', 'x')
		default:
			b = append(b, '\\', s[i])
		}
	}
	return string(b)
}

const hexDigits = "0123456789abcdef"

// timestampLayout is RFC 3339 with a numeric offset even for UTC, as in the schema; a fraction is written only if there
// is one.
const timestampLayout = "2006-01-02T15:04:05.999999999-07:00"

func formatTimestamp(t time.Time) string { return t.UTC().Format(timestampLayout) }

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func parseTime(text string) (time.Time, bool) {
	t, err := time.Parse(time.RFC3339Nano, text)
	return t, err == nil
}

func timeHeader(md message.Metadata, key string) (time.Time, bool) {
	return parseTime(md[key])
}
