package rest

import (
	"encoding/hex"
	"time"
	"unicode/utf8"

	"github.com/redrive-go/redrive/dlq"
)

// Entry is a dead letter without its message.
type Entry struct {
	ID             int64     `json:"id"`
	Status         string    `json:"status" enum:"PENDING,RETRYING,PARKED,RESOLVED,DISCARDED"`
	Version        int64     `json:"version" doc:"Counts the changes; the ETag."`
	EventID        string    `json:"event_id" doc:"The message's id."`
	EventType      string    `json:"event_type"`
	SourceTable    string    `json:"source_table,omitempty"`
	SourceID       string    `json:"source_id,omitempty"`
	CorrelationID  string    `json:"correlation_id,omitempty"`
	Broker         string    `json:"broker,omitempty" doc:"The URL scheme of the broker."`
	Topic          string    `json:"topic"`
	Consumer       string    `json:"consumer,omitempty"`
	Exchange       string    `json:"exchange,omitempty"`
	RoutingKey     string    `json:"routing_key,omitempty"`
	Partition      *int32    `json:"partition,omitempty"`
	Offset         *int64    `json:"offset,omitempty"`
	Position       string    `json:"position,omitempty" doc:"Identifies the delivery within broker and topic."`
	BrokerTime     time.Time `json:"broker_time,omitzero"`
	Handler        string    `json:"handler,omitempty"`
	Reason         string    `json:"reason" doc:"permanent, exhausted, malformed, expired, panic, manual or crash."`
	ErrorMessage   string    `json:"error_message"`
	ErrorClass     string    `json:"error_class,omitempty"`
	ErrorCode      string    `json:"error_code,omitempty"`
	Rule           string    `json:"rule,omitempty" doc:"What classified the error."`
	Cause          string    `json:"cause" doc:"The error without its numbers, ids and quoted values."`
	Fingerprint    string    `json:"fingerprint" doc:"The group."`
	Attempts       int       `json:"attempts" doc:"How often the handler ran."`
	RedriveCount   int       `json:"redrive_count" doc:"How often it was redriven."`
	RedriveBudget  int       `json:"redrive_budget" doc:"How often it should be at most."`
	DeathRedrive   int       `json:"death_redrive" doc:"The redrive that ended in the last death; 0 is the first delivery."`
	SeenCount      int       `json:"seen_count" doc:"How often this death was reported."`
	LeaseUntil     time.Time `json:"lease_until,omitzero" doc:"When a redrive under way is taken for lost."`
	Run            string    `json:"run,omitempty" doc:"The redrive run that took it last."`
	CreatedAt      time.Time `json:"created_at" doc:"The first death."`
	FirstFailureAt time.Time `json:"first_failure_at,omitzero"`
	DiedAt         time.Time `json:"died_at" doc:"The last death."`
	LastSeenAt     time.Time `json:"last_seen_at,omitzero"`
	LastRedriveAt  time.Time `json:"last_redrive_at,omitzero"`
	SucceededAt    time.Time `json:"succeeded_at,omitzero"`
	ResolvedAt     time.Time `json:"resolved_at,omitzero"`
	ResolvedBy     string    `json:"resolved_by,omitempty"`
	ChangedAt      time.Time `json:"changed_at,omitzero"`
	ChangedBy      string    `json:"changed_by,omitempty"`
	Revision       int       `json:"revision" doc:"The body that a redrive sends."`
	Size           int64     `json:"size" doc:"Its payload in bytes."`
}

func entryOf(e *dlq.Entry) Entry {
	return Entry{
		ID: e.ID, Status: string(e.Status), Version: e.Version, EventID: e.EventID, EventType: e.EventType, SourceTable: e.SourceTable,
		SourceID: e.SourceID, CorrelationID: e.CorrelationID, Broker: e.Origin.Broker, Topic: e.Origin.Topic, Consumer: e.Origin.Consumer,
		Exchange: e.Origin.Exchange, RoutingKey: e.Origin.RoutingKey, Partition: e.Origin.Partition, Offset: e.Origin.Offset,
		Position: e.Origin.Position, BrokerTime: e.Origin.Timestamp, Handler: e.Handler, Reason: string(e.Reason), ErrorMessage: e.ErrorMessage,
		ErrorClass: e.ErrorClass, ErrorCode: e.ErrorCode, Rule: e.Rule, Cause: e.Cause, Fingerprint: e.Fingerprint, Attempts: e.Attempts,
		RedriveCount: e.RedriveCount, RedriveBudget: e.RedriveBudget, DeathRedrive: e.DeathRedrive, SeenCount: e.SeenCount,
		LeaseUntil: e.LeaseUntil, Run: e.Run, CreatedAt: e.CreatedAt, FirstFailureAt: e.FirstFailureAt, DiedAt: e.DiedAt, LastSeenAt: e.LastSeenAt,
		LastRedriveAt: e.LastRedriveAt, SucceededAt: e.SucceededAt, ResolvedAt: e.ResolvedAt, ResolvedBy: e.ResolvedBy, ChangedAt: e.ChangedAt,
		ChangedBy: e.ChangedBy, Revision: e.Revision, Size: e.Size,
	}
}

// EntryDetail is a dead letter with its message.
type EntryDetail struct {
	Entry
	Body Body `json:"body"`
}

// Body is one revision of an entry's message.
type Body struct {
	Revision      int               `json:"revision" doc:"Counts from 0, which is what died first."`
	UUID          string            `json:"uuid,omitempty" doc:"The Watermill message's own id."`
	ContentType   string            `json:"content_type,omitempty"`
	Headers       map[string]string `json:"headers"`
	Payload       *string           `json:"payload,omitempty" doc:"The payload where it is text."`
	PayloadBase64 []byte            `json:"payload_base64,omitempty" doc:"The payload where it is not."`
	SHA256        string            `json:"sha256" doc:"Digest of what is shown of the payload."`
	StackTrace    string            `json:"stack_trace,omitempty"`
}

func bodyOf(b *dlq.Body) Body {
	shown := Body{
		Revision: b.Revision, UUID: b.UUID, ContentType: b.ContentType, Headers: b.Headers, SHA256: hex.EncodeToString(b.SHA256[:]),
		StackTrace: b.Trace,
	}
	if shown.Headers == nil {
		shown.Headers = map[string]string{}
	}
	if utf8.Valid(b.Payload) {
		text := string(b.Payload)
		shown.Payload = &text
	} else {
		shown.PayloadBase64 = b.Payload
	}
	return shown
}

// AuditRecord is a line of the audit log.
type AuditRecord struct {
	ID      int64             `json:"id"`
	At      time.Time         `json:"at"`
	Actor   string            `json:"actor"`
	Action  string            `json:"action"`
	Note    string            `json:"note,omitempty"`
	EntryID int64             `json:"entry_id,omitempty"`
	Run     string            `json:"run,omitempty"`
	From    string            `json:"from,omitempty" doc:"The status before."`
	To      string            `json:"to,omitempty" doc:"The status after."`
	Version int64             `json:"version,omitempty" doc:"The version after."`
	Detail  map[string]string `json:"detail,omitempty"`
}

func auditOf(records []dlq.AuditRecord) []AuditRecord {
	shown := make([]AuditRecord, 0, len(records))
	for i := range records {
		r := &records[i]
		shown = append(shown, AuditRecord{
			ID: r.ID, At: r.At, Actor: r.Actor, Action: string(r.Action), Note: r.Note, EntryID: r.EntryID, Run: r.Run, From: string(r.From),
			To: string(r.To), Version: r.Version, Detail: r.Detail,
		})
	}
	return shown
}

// Diff is what changed between two bodies.
type Diff struct {
	Headers        []HeaderDiff `json:"headers" nullable:"false"`
	Lines          []DiffLine   `json:"lines" nullable:"false" doc:"The payload's lines that changed, with a few around them; JSON is indented first."`
	PayloadChanged bool         `json:"payload_changed"`
	Binary         bool         `json:"binary" doc:"One of the payloads is not text."`
	Before         int          `json:"before" doc:"Bytes before."`
	After          int          `json:"after" doc:"Bytes after."`
}

// HeaderDiff is a header that changed.
type HeaderDiff struct {
	Name    string `json:"name"`
	Before  string `json:"before,omitempty"`
	After   string `json:"after,omitempty"`
	Added   bool   `json:"added,omitempty"`
	Removed bool   `json:"removed,omitempty"`
}

// DiffLine is a line of a payload.
type DiffLine struct {
	Op   string `json:"op" enum:"-,+, ,@" doc:"- is gone, + is new, a space stays, @ is a gap."`
	Text string `json:"text"`
}

func diffOf(d dlq.Diff) Diff {
	shown := Diff{
		Headers: []HeaderDiff{}, Lines: []DiffLine{}, PayloadChanged: d.PayloadChanged, Binary: d.Binary, Before: d.Before, After: d.After,
	}
	for _, h := range d.Headers {
		shown.Headers = append(shown.Headers, HeaderDiff(h))
	}
	for _, l := range d.Lines {
		shown.Lines = append(shown.Lines, DiffLine{string(l.Op), l.Text})
	}
	return shown
}
