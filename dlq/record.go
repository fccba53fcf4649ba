package dlq

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"
	"unicode/utf8"

	"github.com/redrive-go/redrive/envelope"
)

// recordVersion is the version of the spool's records. A process reads those of older versions.
const recordVersion = 1

// record is a line of the spool. Its names are a file format: add to them, do not change them.
type record struct {
	Version  int          `json:"v"`
	Dead     *spooledDead `json:"dead,omitempty"`
	Redriven *redriven    `json:"redriven,omitempty"`
}

// spooledDead is an Entry that is not stored yet.
type spooledDead struct {
	Key            []byte      `json:"key"`
	EventID        string      `json:"event_id"`
	EventType      string      `json:"event_type"`
	SourceTable    string      `json:"source_table,omitempty"`
	SourceID       string      `json:"source_id,omitempty"`
	CorrelationID  string      `json:"correlation_id,omitempty"`
	Broker         string      `json:"broker,omitempty"`
	Topic          exactText   `json:"topic,omitzero"`
	Consumer       exactText   `json:"consumer,omitzero"`
	Exchange       exactText   `json:"exchange,omitzero"`
	RoutingKey     exactText   `json:"routing_key,omitzero"`
	MessageKey     []byte      `json:"message_key,omitempty"`
	Partition      *int32      `json:"partition,omitempty"`
	Offset         *int64      `json:"offset,omitempty"`
	BrokerTime     time.Time   `json:"broker_time,omitzero"`
	Position       exactText   `json:"position,omitzero"`
	Handler        string      `json:"handler,omitempty"`
	Reason         string      `json:"reason,omitempty"`
	ErrorMessage   string      `json:"error_message,omitempty"`
	ErrorCode      string      `json:"error_code,omitempty"`
	ErrorClass     string      `json:"error_class,omitempty"`
	Rule           string      `json:"rule,omitempty"`
	Attempts       int         `json:"attempts"`
	RedriveBudget  int         `json:"redrive_budget"`
	RedriveOf      int64       `json:"redrive_of,omitempty"`
	Redrive        int         `json:"redrive,omitempty"`
	FirstFailureAt time.Time   `json:"first_failure_at"`
	DiedAt         time.Time   `json:"died_at"`
	UUID           exactText   `json:"uuid,omitzero"`
	ContentType    string      `json:"content_type,omitempty"`
	Trace          string      `json:"trace,omitempty"`
	Headers        []exactPair `json:"headers,omitempty"`
	SHA256         []byte      `json:"sha256"`
	Payload        []byte      `json:"payload"`
}

// exactText is text that may not be valid UTF-8, which JSON cannot hold: it is base64 in an array then.
type exactText string

type exactPair [2]exactText

// MarshalJSON writes valid UTF-8 as a string, and anything else as an array with its base64.
func (t exactText) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal([]string{base64.StdEncoding.EncodeToString([]byte(t))})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (t *exactText) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		return json.Unmarshal(data, (*string)(t))
	}
	var encoded [1][]byte
	if err := json.Unmarshal(data, &encoded); err != nil {
		return err
	}
	*t = exactText(encoded[0])
	return nil
}

func redrivenRecord(r redriven) record { return record{Version: recordVersion, Redriven: &r} }

func deadRecord(e *Entry) record {
	o := &e.Origin
	d := &spooledDead{
		Key: e.Key[:], EventID: e.EventID, EventType: e.EventType, SourceTable: e.SourceTable, SourceID: e.SourceID,
		CorrelationID: e.CorrelationID, Broker: o.Broker, Topic: exactText(o.Topic), Consumer: exactText(o.Consumer),
		Exchange: exactText(o.Exchange), RoutingKey: exactText(o.RoutingKey), MessageKey: o.Key, Partition: o.Partition,
		Offset: o.Offset, BrokerTime: o.Timestamp, Position: exactText(o.Position), Handler: e.Handler,
		Reason: string(e.Reason), ErrorMessage: e.ErrorMessage, ErrorCode: e.ErrorCode, ErrorClass: e.ErrorClass,
		Rule: e.Rule, Attempts: e.Attempts, RedriveBudget: e.RedriveBudget, RedriveOf: e.RedriveOf, Redrive: e.DeathRedrive,
		FirstFailureAt: e.FirstFailureAt, DiedAt: e.DiedAt, UUID: exactText(e.Body.UUID), ContentType: e.Body.ContentType,
		Trace: e.Body.Trace, SHA256: e.Body.SHA256[:], Payload: e.Body.Payload,
	}
	for key, value := range e.Body.Headers {
		d.Headers = append(d.Headers, exactPair{exactText(key), exactText(value)})
	}
	return record{Version: recordVersion, Dead: d}
}

func (d *spooledDead) entry() *Entry {
	e := &Entry{
		EventID: d.EventID, EventType: d.EventType, SourceTable: d.SourceTable, SourceID: d.SourceID,
		CorrelationID: d.CorrelationID,
		Origin: envelope.Origin{
			Broker: d.Broker, Topic: string(d.Topic), Consumer: string(d.Consumer), Exchange: string(d.Exchange),
			RoutingKey: string(d.RoutingKey), Key: d.MessageKey, Partition: d.Partition, Offset: d.Offset,
			Timestamp: d.BrokerTime, Position: string(d.Position),
		},
		Handler: d.Handler, Reason: envelope.Reason(d.Reason), ErrorMessage: d.ErrorMessage, ErrorCode: d.ErrorCode,
		ErrorClass: d.ErrorClass, Rule: d.Rule, Cause: Normalize(d.ErrorMessage),
		Fingerprint: Fingerprint(d.Handler, d.ErrorClass, d.ErrorCode, d.ErrorMessage),
		Attempts:    d.Attempts, Status: Pending, Version: 1, RedriveCount: d.Redrive, RedriveBudget: d.RedriveBudget,
		DeathRedrive: d.Redrive, RedriveOf: d.RedriveOf, SeenCount: 1, CreatedAt: d.DiedAt, FirstFailureAt: d.FirstFailureAt,
		DiedAt: d.DiedAt, LastSeenAt: d.DiedAt, ChangedAt: d.DiedAt, Size: int64(len(d.Payload)),
		Body: &Body{
			UUID: string(d.UUID), Payload: d.Payload, Headers: make(map[string]string, len(d.Headers)),
			ContentType: d.ContentType, Trace: d.Trace,
		},
	}
	copy(e.Key[:], d.Key)
	copy(e.Body.SHA256[:], d.SHA256)
	for _, pair := range d.Headers {
		e.Body.Headers[string(pair[0])] = string(pair[1])
	}
	e.ChangedBy = e.actor()
	return e
}

func (r record) encode() ([]byte, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("dlq: spool: %w", err)
	}
	return data, nil
}

func decodeRecord(data []byte) (record, error) {
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("dlq: spool: %w", err)
	}
	if r.Version > recordVersion || r.Dead == nil && r.Redriven == nil {
		return r, fmt.Errorf("dlq: spool: record of version %d, which this version of the library (%d) cannot read",
			r.Version, recordVersion)
	}
	return r, nil
}

// put brings a run of records into the store, in their order. The dead ones next to each other go in one call.
func putRecords(ctx context.Context, store Store, logger *slog.Logger, records []record) error {
	var dead []*Entry
	flush := func() error {
		if len(dead) == 0 {
			return nil
		}
		_, err := store.Put(ctx, dead...)
		dead = dead[:0]
		return err
	}
	for _, r := range records {
		if r.Dead != nil {
			dead = append(dead, r.Dead.entry())
			continue
		}
		if err := flush(); err != nil {
			return err
		}
		if err := r.Redriven.put(ctx, store, logger); err != nil {
			return err
		}
	}
	return flush()
}
