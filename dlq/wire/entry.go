package wire

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
	"unicode/utf8"
)

// Entry is a dead letter without its message.
type Entry struct {
	ID             int64     `json:"id"`
	Key            []byte    `json:"key,omitempty" doc:"Identifies the delivery; absent if anything is hidden from the caller."`
	Status         Status    `json:"status" enum:"PENDING,RETRYING,PARKED,RESOLVED,DISCARDED"`
	Version        int64     `json:"version" doc:"Counts the changes; the ETag."`
	EventID        Text      `json:"event_id" doc:"The message's id."`
	EventType      Text      `json:"event_type"`
	SourceTable    Text      `json:"source_table,omitempty"`
	SourceID       Text      `json:"source_id,omitempty"`
	CorrelationID  Text      `json:"correlation_id,omitempty"`
	Broker         Text      `json:"broker,omitempty" doc:"The URL scheme of the broker."`
	Topic          Text      `json:"topic"`
	Consumer       Text      `json:"consumer,omitempty"`
	Exchange       Text      `json:"exchange,omitempty"`
	RoutingKey     Text      `json:"routing_key,omitempty"`
	MessageKey     []byte    `json:"message_key,omitempty" doc:"The key of the message on brokers with keys."`
	Partition      *int32    `json:"partition,omitempty"`
	Offset         *int64    `json:"offset,omitempty"`
	Position       Text      `json:"position,omitempty" doc:"Identifies the delivery within broker and topic."`
	RedriveTo      Text      `json:"redrive_to,omitempty" doc:"Where a redrive is published, as the consumer's broker named it."`
	BrokerTime     time.Time `json:"broker_time,omitzero"`
	Handler        Text      `json:"handler,omitempty"`
	Reason         string    `json:"reason" doc:"permanent, exhausted, malformed, expired, panic, manual or crash."`
	ErrorMessage   Text      `json:"error_message"`
	ErrorClass     Text      `json:"error_class,omitempty"`
	ErrorCode      Text      `json:"error_code,omitempty"`
	Rule           Text      `json:"rule,omitempty" doc:"What classified the error."`
	Cause          Text      `json:"cause" doc:"The error without its numbers, ids and quoted values."`
	Fingerprint    string    `json:"fingerprint" doc:"The group."`
	Attempts       int       `json:"attempts" doc:"How often the handler ran."`
	RedriveCount   int       `json:"redrive_count" doc:"How often it was redriven."`
	RedriveBudget  int       `json:"redrive_budget" doc:"After how many redrives it is parked."`
	DeathRedrive   int       `json:"death_redrive" doc:"The redrive that ended in the last death; 0 is the first delivery."`
	RedriveOf      int64     `json:"redrive_of,omitempty" doc:"In a spool: the entry that died again."`
	SeenCount      int       `json:"seen_count" doc:"How often this death was reported."`
	LeaseUntil     time.Time `json:"lease_until,omitzero" doc:"When a redrive in flight is treated as lost."`
	Run            string    `json:"run,omitempty" doc:"The redrive run that claimed it last."`
	CreatedAt      time.Time `json:"created_at" doc:"The first death."`
	FirstFailureAt time.Time `json:"first_failure_at,omitzero"`
	DiedAt         time.Time `json:"died_at" doc:"The last death."`
	LastSeenAt     time.Time `json:"last_seen_at,omitzero"`
	LastRedriveAt  time.Time `json:"last_redrive_at,omitzero"`
	SucceededAt    time.Time `json:"succeeded_at,omitzero"`
	ResolvedAt     time.Time `json:"resolved_at,omitzero"`
	ResolvedBy     Text      `json:"resolved_by,omitempty"`
	ChangedAt      time.Time `json:"changed_at,omitzero"`
	ChangedBy      Text      `json:"changed_by,omitempty"`
	Revision       int       `json:"revision" doc:"The body that a redrive sends."`
	Size           int64     `json:"size,omitempty" doc:"Size of the payload in bytes; absent if anything is hidden from the caller."`
}

// EntryDetail is a dead letter with its message.
type EntryDetail struct {
	Entry
	Body Body `json:"body"`
}

// EntryList is a page of entries.
type EntryList struct {
	Entries []Entry `json:"entries" nullable:"false"`
	Next    string  `json:"next,omitempty" doc:"The cursor of the next page; absent on the last."`
}

// Body is one revision of an entry's message.
type Body struct {
	Revision      int     `json:"revision" doc:"Counts from 0, the original message."`
	UUID          Text    `json:"uuid,omitempty" doc:"The Watermill message's own id."`
	ContentType   Text    `json:"content_type,omitempty"`
	Headers       Headers `json:"headers"`
	Payload       *string `json:"payload,omitempty" doc:"The payload if it is valid UTF-8."`
	PayloadBase64 []byte  `json:"payload_base64,omitempty" doc:"The payload if it is not."`
	SHA256        string  `json:"sha256" doc:"SHA-256 of the payload as shown, in hexadecimal."`
	StackTrace    Text    `json:"stack_trace,omitempty"`

	Collected *Collected `json:"collected,omitempty" doc:"Where a collector found it."`
}

// Collected is where a collector found a dead letter.
type Collected struct {
	Broker Text `json:"broker" doc:"The broker's name."`
	From   Text `json:"from" doc:"The queue or topic."`
	Format Text `json:"format" doc:"Its format: redrive, spring-kafka, plain ..."`
}

// Bytes is the payload.
func (b *Body) Bytes() []byte {
	if b.Payload != nil {
		return []byte(*b.Payload)
	}
	return b.PayloadBase64
}

// SetBytes sets the payload and its digest.
func (b *Body) SetBytes(payload []byte) {
	b.Payload, b.PayloadBase64 = nil, nil
	if utf8.Valid(payload) {
		text := string(payload)
		b.Payload = &text
	} else {
		b.PayloadBase64 = payload
	}
	sum := sha256.Sum256(payload)
	b.SHA256 = hex.EncodeToString(sum[:])
}

// Count is a number of entries.
type Count struct {
	Count int64 `json:"count"`
}

// ValidationEvent is a dead letter with the column names of services that had their own dead letter table.
type ValidationEvent struct {
	ID             int64     `json:"id"`
	EventID        Text      `json:"event_id"`
	EventType      Text      `json:"event_type"`
	SourceTable    Text      `json:"source_table,omitempty"`
	SourceID       Text      `json:"source_id,omitempty"`
	ErrorMessage   Text      `json:"error_message"`
	RetryCount     int       `json:"retry_count"`
	MaxRetries     int       `json:"max_retries"`
	Status         Status    `json:"status" enum:"PENDING,RETRYING,PARKED,RESOLVED,DISCARDED"`
	CreatedAt      time.Time `json:"created_at"`
	LastRetryAt    time.Time `json:"last_retry_at,omitzero"`
	ResolvedAt     time.Time `json:"resolved_at,omitzero"`
	ResolvedBy     Text      `json:"resolved_by,omitempty"`
	KafkaOffset    *int64    `json:"kafka_offset,omitempty"`
	KafkaPartition *int32    `json:"kafka_partition,omitempty"`
	KafkaTopic     Text      `json:"kafka_topic,omitempty"`
	CorrelationID  Text      `json:"correlation_id,omitempty"`
}

// ValidationEventOf is the entry with those names.
func ValidationEventOf(e *Entry) ValidationEvent {
	return ValidationEvent{
		ID: e.ID, EventID: e.EventID, EventType: e.EventType, SourceTable: e.SourceTable, SourceID: e.SourceID,
		ErrorMessage: e.ErrorMessage, RetryCount: e.RedriveCount, MaxRetries: e.RedriveBudget, Status: e.Status,
		CreatedAt: e.CreatedAt, LastRetryAt: e.LastRedriveAt, ResolvedAt: e.ResolvedAt, ResolvedBy: e.ResolvedBy,
		KafkaOffset: e.Offset, KafkaPartition: e.Partition, KafkaTopic: e.Topic, CorrelationID: e.CorrelationID,
	}
}

// Version is the version of the lines of an export and of the records of a spool.
const Version = 2

// LinesType is the content type of an export.
const LinesType = "application/jsonl"

// Letter is a line of an export: an entry with every revision of its body, in order.
type Letter struct {
	Version int `json:"v"`
	// Redacted means that values are hidden: an import refuses the line, because they would be lost.
	Redacted bool   `json:"redacted,omitzero"`
	Entry    Entry  `json:"entry"`
	Bodies   []Body `json:"bodies"`
}

// Record is a record of a spool: a dead letter, or the outcome of a redrive.
type Record struct {
	Version  int          `json:"v"`
	Dead     *EntryDetail `json:"dead,omitempty"`
	Redriven *Redriven    `json:"redriven,omitempty"`
}

// Redriven is the success of a redriven message, as its consumer reported it.
type Redriven struct {
	ID        int64     `json:"id"`
	MessageID string    `json:"message_id"`
	Topic     string    `json:"topic,omitempty"`
	Consumer  string    `json:"consumer,omitempty"`
	Number    int       `json:"number,omitempty"`
	At        time.Time `json:"at"`
}

// VersionError is the error for a line or a record of a version that this program cannot read.
type VersionError struct {
	Version int
}

// Error names both versions.
func (e *VersionError) Error() string {
	return fmt.Sprintf("version %d cannot be read: this program reads version %d", e.Version, Version)
}

// UnmarshalJSON refuses a line of another version, before anything else in it: its fields may have other types.
func (l *Letter) UnmarshalJSON(data []byte) error {
	if err := checkVersion(data); err != nil {
		return err
	}
	type plain Letter
	return json.Unmarshal(data, (*plain)(l))
}

// UnmarshalJSON refuses a record of another version, as for a [Letter].
func (r *Record) UnmarshalJSON(data []byte) error {
	if err := checkVersion(data); err != nil {
		return err
	}
	type plain Record
	return json.Unmarshal(data, (*plain)(r))
}

func checkVersion(data []byte) error {
	var line struct {
		Version int `json:"v"`
	}
	if err := json.Unmarshal(data, &line); err != nil {
		return err
	}
	if line.Version != Version {
		return &VersionError{line.Version}
	}
	return nil
}

// Text is text that may contain any bytes. In JSON it is a string if the bytes are valid UTF-8, otherwise a list with
// their base64.
type Text string

// MarshalJSON writes a string, or a list with the base64.
func (t Text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal([1]string{base64.StdEncoding.EncodeToString([]byte(t))})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (t *Text) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] != '[' {
		return json.Unmarshal(data, (*string)(t))
	}
	var encoded [1][]byte
	if err := json.Unmarshal(data, &encoded); err != nil {
		return err
	}
	*t = Text(encoded[0])
	return nil
}

// Headers are the headers of a message. In JSON they are an object, or a list of pairs if a name is not valid UTF-8.
type Headers map[string]string

// MarshalJSON writes an object, or a list of pairs in the order of their names.
func (h Headers) MarshalJSON() ([]byte, error) {
	object, pairs := make(map[string]Text, len(h)), make([][2]Text, 0, len(h))
	plain := true
	for _, name := range slices.Sorted(maps.Keys(h)) {
		plain = plain && utf8.ValidString(name)
		object[name] = Text(h[name])
		pairs = append(pairs, [2]Text{Text(name), Text(h[name])})
	}
	if plain {
		return json.Marshal(object)
	}
	return json.Marshal(pairs)
}

// UnmarshalJSON reads an object or a list of pairs.
func (h *Headers) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '[' {
		var pairs [][2]Text
		if err := json.Unmarshal(data, &pairs); err != nil {
			return err
		}
		*h = make(Headers, len(pairs))
		for _, pair := range pairs {
			(*h)[string(pair[0])] = string(pair[1])
		}
		return nil
	}
	var object map[string]Text
	if err := json.Unmarshal(data, &object); err != nil || object == nil {
		return err
	}
	*h = make(Headers, len(object))
	for name, value := range object {
		(*h)[name] = string(value)
	}
	return nil
}

// Seconds is a duration that is a number of seconds in JSON.
type Seconds time.Duration

// SecondsOf is the duration of this many seconds; of too many, the longest one.
func SecondsOf(seconds float64) Seconds {
	longest := math.Nextafter(1<<63, 0) // a conversion of more may have the other sign
	return Seconds(min(max(seconds*float64(time.Second), -longest), longest))
}

// Duration is the duration.
func (s Seconds) Duration() time.Duration { return time.Duration(s) }

// MarshalJSON writes the seconds.
func (s Seconds) MarshalJSON() ([]byte, error) { return json.Marshal(s.Duration().Seconds()) }

// UnmarshalJSON reads the seconds.
func (s *Seconds) UnmarshalJSON(data []byte) error {
	var seconds float64
	err := json.Unmarshal(data, &seconds)
	*s = SecondsOf(seconds)
	return err
}
