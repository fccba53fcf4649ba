package cloudevents

import (
	"cmp"
	"encoding/json"
	"fmt"
	"mime"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"

	"github.com/redrive-go/redrive/envelope"
)

// The extensions that hold an envelope's fields.
const (
	extVersion       = "envelopeversion"
	extRetryCount    = "retrycount"
	extErrorMessage  = "errormessage"
	extErrorCode     = "errorcode"
	extErrorTrace    = "errortrace"
	extOriginalDelay = "originaldelay"
	extFirstFailure  = "firstfailure"
	extCorrelationID = "correlationid"
	extMetadata      = "metadata"
)

// Metadata that hold attributes without a field: name is the header of Watermill's cqrs.
const (
	keyDataSchema = "ce_dataschema"
	keyName       = "ce_" + envelope.KeyCQRSName
)

// unknownSource stands for an unknown source; CloudEvents require one.
const unknownSource = "/"

// FromEnvelope returns the envelope as a CloudEvent. The error names what a CloudEvent cannot hold, such as an envelope
// without an event name or a queue for its type.
func FromEnvelope(e envelope.Envelope) (event.Event, error) {
	ev := event.New(event.CloudEventsVersionV1)
	ev.SetID(e.MessageID())
	ev.SetSource(cmp.Or(e.Source(), unknownSource))
	ev.SetType(cmp.Or(e.Event(), e.Queue()))
	if queue := e.Queue(); queue != "" {
		ev.SetSubject(queue)
	}
	if t := e.Timestamp(); !t.IsZero() {
		ev.SetTime(t)
	}
	if contentType := e.DataContentType(); contentType != "" {
		ev.SetDataContentType(contentType)
	}
	ev.DataEncoded = e.Data()
	ev.DataBase64 = !isExactJSON(ev.DataMediaType(), ev.DataEncoded)

	ev.SetExtension(extVersion, e.Version())
	if n := e.RetryCount(); n > 0 {
		ev.SetExtension(extRetryCount, n)
	}
	if err := e.Err(); err != nil {
		ev.SetExtension(extErrorMessage, quote(err.Message))
		ev.SetExtension(extErrorCode, quote(err.Code))
		ev.SetExtension(extErrorTrace, quote(err.Trace))
	}
	if d := e.OriginalDelay(); d > 0 {
		ev.SetExtension(extOriginalDelay, "PT"+strconv.FormatFloat(d.Seconds(), 'f', -1, 64)+"S") // such as PT0.3S
	}
	if t := e.FirstFailure(); !t.IsZero() {
		ev.SetExtension(extFirstFailure, t)
	}
	if err := setMetadata(&ev, e); err != nil {
		return event.Event{}, err
	}
	if err := ev.Validate(); err != nil {
		return event.Event{}, fmt.Errorf("cloudevents: the envelope cannot become a valid event: %w", err)
	}
	return ev, nil
}

func setMetadata(ev *event.Event, e envelope.Envelope) error {
	rest := make(map[string]string)
	for key, value := range e.Metadata() {
		switch {
		case key == envelope.KeyCorrelationID:
		case key == keyDataSchema && isAbsolute(value):
			ev.SetDataSchema(value)
		case key == keyName:
			ev.SetExtension(envelope.KeyCQRSName, value)
		case isExtension(key):
			ev.SetExtension(key, value)
		default:
			rest[key] = value
		}
	}
	if id := e.CorrelationID(); id != "" {
		ev.SetExtension(extCorrelationID, id)
	}
	headers := e.Message().Metadata
	for _, key := range [...]string{envelope.KeyTraceParent, envelope.KeyTraceState} {
		if value := headers[key]; value != "" {
			ev.SetExtension(key, value)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	if foreign := rest[extMetadata]; len(rest) == 1 && foreign != "" && len(ownMetadata(foreign)) == 0 {
		ev.SetExtension(extMetadata, foreign)
		return nil
	}
	text, err := json.Marshal(rest)
	if err != nil {
		return fmt.Errorf("cloudevents: metadata: %w", err)
	}
	ev.SetExtension(extMetadata, string(text))
	return nil
}

// isAbsolute reports whether a text can be a data schema. Other producers have different ones.
func isAbsolute(text string) bool {
	uri := types.ParseURI(text)
	return uri != nil && uri.Validate()
}

// isExtension reports whether a metadata name can be a separate extension.
func isExtension(name string) bool {
	switch name {
	case "id", "source", "specversion", "type", "subject", "time", "datacontenttype", "dataschema", "data",
		extVersion, extRetryCount, extErrorMessage, extErrorCode, extErrorTrace, extOriginalDelay, extFirstFailure,
		extCorrelationID, extMetadata:
		return false
	}
	return event.IsExtensionNameValid(name) && strings.ToLower(name) == name
}

// isExactJSON reports whether data of that type survive a JSON event byte for byte.
func isExactJSON(mediaType string, data []byte) bool {
	return isJSONType(mediaType) && len(data) > 0 && data[0] > ' ' && data[len(data)-1] > ' ' && json.Valid(data) &&
		utf8.Valid(data)
}

func isJSONType(mediaType string) bool {
	return mediaType == "" || strings.HasSuffix(mediaType, "/json") || strings.HasSuffix(mediaType, "+json")
}

// ToEnvelope returns a CloudEvent as an envelope in binary mode. The error names what makes the event invalid.
func ToEnvelope(ev event.Event) (envelope.Envelope, error) {
	if err := ev.Validate(); err != nil {
		return envelope.Envelope{}, fmt.Errorf("cloudevents: not a valid event: %w", err)
	}
	m := message.NewMessage(ev.ID(), ev.Data())
	var failure envelope.Error
	failed := false
	for name, value := range ev.Extensions() {
		text, err := types.Format(value)
		if err != nil {
			return envelope.Envelope{}, fmt.Errorf("cloudevents: extension %s: %w", name, err)
		}
		switch name {
		case extVersion:
		case extRetryCount:
			put(m.Metadata, envelope.KeyRetryCount, text) // validated as strictly as every retry count
		case extErrorMessage:
			failure.Message, failed = unquote(text), true
		case extErrorCode:
			failure.Code, failed = unquote(text), true
		case extErrorTrace:
			failure.Trace, failed = unquote(text), true
		case extOriginalDelay:
			d, err := parseDuration(text)
			if err != nil {
				return envelope.Envelope{}, err
			}
			put(m.Metadata, envelope.KeyOriginalDelay, strconv.FormatInt(d.Milliseconds(), 10))
		case extFirstFailure:
			put(m.Metadata, envelope.KeyFirstFailure, text)
		case extCorrelationID:
			put(m.Metadata, envelope.KeyCorrelationID, text)
		case extMetadata:
			addMetadata(m.Metadata, text)
		case envelope.KeyTraceParent, envelope.KeyTraceState:
			put(m.Metadata, name, text)
		default:
			if name == envelope.KeyCQRSName {
				name = keyName
			}
			m.Metadata[name] = text
		}
	}
	put(m.Metadata, envelope.KeyMessageID, ev.ID())
	if source := ev.Source(); source != unknownSource {
		put(m.Metadata, envelope.KeySource, source)
	}
	put(m.Metadata, keyDataSchema, ev.DataSchema())
	put(m.Metadata, envelope.KeyEvent, ev.Type())
	put(m.Metadata, envelope.KeyQueue, cmp.Or(ev.Subject(), ev.Type()))
	put(m.Metadata, envelope.KeyContentType, ev.DataContentType())
	if t := ev.Time(); !t.IsZero() {
		put(m.Metadata, envelope.KeyTimestamp, t.Format(time.RFC3339Nano))
	}
	put(m.Metadata, envelope.KeyVersion, envelope.LayoutVersion)
	e, err := envelope.FromMessage(m)
	if err == nil && failed {
		e = e.WithError(failure)
	}
	return e, err
}

// put sets a header that has a value.
func put(md message.Metadata, key, value string) {
	if value != "" {
		md[key] = value
	}
}

// addMetadata reads the extension that holds the metadata whose names cannot be extensions. Another producer's
// "metadata" is kept as an ordinary value.
func addMetadata(md message.Metadata, text string) {
	rest := ownMetadata(text)
	if len(rest) == 0 {
		md[extMetadata] = text
	}
	for key, value := range rest {
		if !envelope.IsOurs(key) {
			md[key] = value
		}
	}
}

// ownMetadata returns what setMetadata has written, or nil if text is another producer's.
func ownMetadata(text string) (rest map[string]string) {
	if json.Unmarshal([]byte(text), &rest) != nil {
		return nil
	}
	for key := range rest {
		if isExtension(key) {
			return nil
		}
	}
	return rest
}

// quote makes a text valid for an attribute, in which control characters are not allowed.
func quote(s string) string {
	if strings.IndexFunc(s, unicode.IsControl) < 0 && !strings.HasPrefix(s, `"`) {
		return s
	}
	return strconv.Quote(s)
}

func unquote(s string) string {
	if strings.HasPrefix(s, `"`) {
		if plain, err := strconv.Unquote(s); err == nil {
			return plain
		}
	}
	return s
}

// isMediaType reports whether a content type is the given media type, with any parameters.
func isMediaType(contentType, want string) bool {
	mediaType, _, err := mime.ParseMediaType(contentType)
	return err == nil && mediaType == want
}

// isoDuration accepts only durations of a fixed length: no years and months.
var isoDuration = regexp.MustCompile(`^P(?:(\d{1,9})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,12}(?:\.\d{1,9})?)S)?)?$`)

// parseDuration reads an ISO 8601 duration of days, hours, minutes and seconds, at most envelope.MaxDelay.
func parseDuration(text string) (time.Duration, error) {
	parts := isoDuration.FindStringSubmatch(text)
	if parts == nil || text == "P" {
		return 0, fmt.Errorf("cloudevents: originaldelay %.40q is not an ISO 8601 duration of days and time, such as PT10S",
			text)
	}
	var seconds float64
	for i, unit := range [...]float64{24 * 3600, 3600, 60, 1} {
		if part := parts[i+1]; part != "" {
			n, err := strconv.ParseFloat(part, 64)
			if err != nil {
				return 0, fmt.Errorf("cloudevents: originaldelay: %w", err)
			}
			seconds += n * unit
		}
	}
	if seconds > envelope.MaxDelay.Seconds() {
		return envelope.MaxDelay, nil
	}
	return time.Duration(seconds * float64(time.Second)).Round(time.Millisecond), nil
}
