package dlq

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/envelope"
)

// Exported is an entry with every revision of its body, in the order of their numbers.
type Exported struct {
	// Entry is as it is in the store, without Body. RedriveOf is not set.
	Entry  Entry
	Bodies []Body
}

// exportVersion is the version of the lines. A process reads those of older versions.
const exportVersion = 1

// exportLine is a line of an export. Its names are a file format: add to them, do not change them. Text that may be any bytes is an
// exactText: a JSON string, or its base64 in an array.
type exportLine struct {
	Version  int            `json:"v"`
	Redacted bool           `json:"redacted,omitzero"` // something was hidden: not to be imported
	Entry    exportedEntry  `json:"entry"`
	Bodies   []exportedBody `json:"bodies"`
}

type exportedEntry struct {
	ID             int64     `json:"id"`
	Key            []byte    `json:"key"`
	EventID        exactText `json:"event_id"`
	EventType      exactText `json:"event_type"`
	SourceTable    exactText `json:"source_table,omitzero"`
	SourceID       exactText `json:"source_id,omitzero"`
	CorrelationID  exactText `json:"correlation_id,omitzero"`
	Broker         exactText `json:"broker,omitzero"`
	Topic          exactText `json:"topic,omitzero"`
	Consumer       exactText `json:"consumer,omitzero"`
	Exchange       exactText `json:"exchange,omitzero"`
	RoutingKey     exactText `json:"routing_key,omitzero"`
	MessageKey     []byte    `json:"message_key,omitempty"`
	Partition      *int32    `json:"partition,omitempty"`
	Offset         *int64    `json:"offset,omitempty"`
	Position       exactText `json:"position,omitzero"`
	BrokerTime     time.Time `json:"broker_time,omitzero"`
	Handler        exactText `json:"handler,omitzero"`
	Reason         string    `json:"reason"`
	ErrorMessage   exactText `json:"error_message"`
	ErrorCode      exactText `json:"error_code,omitzero"`
	ErrorClass     exactText `json:"error_class,omitzero"`
	Rule           exactText `json:"rule,omitzero"`
	Fingerprint    string    `json:"fingerprint"`
	Attempts       int       `json:"attempts"`
	Status         Status    `json:"status"`
	EntryVersion   int64     `json:"version"`
	RedriveCount   int       `json:"redrive_count"`
	RedriveBudget  int       `json:"redrive_budget"`
	DeathRedrive   int       `json:"death_redrive"`
	SeenCount      int       `json:"seen_count"`
	LeaseUntil     time.Time `json:"lease_until,omitzero"`
	Run            string    `json:"run,omitzero"`
	CreatedAt      time.Time `json:"created_at"`
	FirstFailureAt time.Time `json:"first_failure_at"`
	DiedAt         time.Time `json:"died_at"`
	LastSeenAt     time.Time `json:"last_seen_at"`
	LastRedriveAt  time.Time `json:"last_redrive_at,omitzero"`
	SucceededAt    time.Time `json:"succeeded_at,omitzero"`
	ResolvedAt     time.Time `json:"resolved_at,omitzero"`
	ResolvedBy     exactText `json:"resolved_by,omitzero"`
	ChangedAt      time.Time `json:"changed_at"`
	ChangedBy      exactText `json:"changed_by"`
	Revision       int       `json:"revision"`
}

type exportedBody struct {
	Revision    int         `json:"revision"`
	UUID        exactText   `json:"uuid,omitzero"`
	ContentType exactText   `json:"content_type,omitzero"`
	Headers     []exactPair `json:"headers,omitempty"`
	Trace       exactText   `json:"trace,omitzero"`
	SHA256      []byte      `json:"sha256"`
	Payload     []byte      `json:"payload"`
	Text        *string     `json:"text,omitempty"` // the payload again, for people, where it is text; not read
}

func lineOf(x *Exported) exportLine {
	e, o := &x.Entry, &x.Entry.Origin
	line := exportLine{Version: exportVersion, Entry: exportedEntry{
		ID: e.ID, Key: e.Key[:], EventID: exactText(e.EventID), EventType: exactText(e.EventType), SourceTable: exactText(e.SourceTable),
		SourceID: exactText(e.SourceID), CorrelationID: exactText(e.CorrelationID), Broker: exactText(o.Broker), Topic: exactText(o.Topic),
		Consumer: exactText(o.Consumer), Exchange: exactText(o.Exchange), RoutingKey: exactText(o.RoutingKey), MessageKey: o.Key,
		Partition: o.Partition, Offset: o.Offset, Position: exactText(o.Position), BrokerTime: o.Timestamp, Handler: exactText(e.Handler),
		Reason: string(e.Reason), ErrorMessage: exactText(e.ErrorMessage), ErrorCode: exactText(e.ErrorCode),
		ErrorClass: exactText(e.ErrorClass), Rule: exactText(e.Rule), Fingerprint: e.Fingerprint, Attempts: e.Attempts, Status: e.Status,
		EntryVersion: e.Version, RedriveCount: e.RedriveCount, RedriveBudget: e.RedriveBudget, DeathRedrive: e.DeathRedrive,
		SeenCount: e.SeenCount, LeaseUntil: e.LeaseUntil, Run: e.Run, CreatedAt: e.CreatedAt, FirstFailureAt: e.FirstFailureAt,
		DiedAt: e.DiedAt, LastSeenAt: e.LastSeenAt, LastRedriveAt: e.LastRedriveAt, SucceededAt: e.SucceededAt, ResolvedAt: e.ResolvedAt,
		ResolvedBy: exactText(e.ResolvedBy), ChangedAt: e.ChangedAt, ChangedBy: exactText(e.ChangedBy), Revision: e.Revision,
	}}
	for i := range x.Bodies {
		b := &x.Bodies[i]
		body := exportedBody{
			Revision: b.Revision, UUID: exactText(b.UUID), ContentType: exactText(b.ContentType), Trace: exactText(b.Trace),
			SHA256: b.SHA256[:], Payload: b.Payload, Headers: sortedPairs(b.Headers),
		}
		if text, ok := readable(b.Payload); ok {
			body.Text = &text
		}
		line.Bodies = append(line.Bodies, body)
	}
	return line
}

func (l *exportLine) exported() (*Exported, error) {
	e := &l.Entry
	x := &Exported{Entry: Entry{
		EventID: string(e.EventID), EventType: string(e.EventType), SourceTable: string(e.SourceTable), SourceID: string(e.SourceID),
		CorrelationID: string(e.CorrelationID),
		Origin: envelope.Origin{
			Broker: string(e.Broker), Topic: string(e.Topic), Consumer: string(e.Consumer), Exchange: string(e.Exchange),
			RoutingKey: string(e.RoutingKey), Key: e.MessageKey, Partition: e.Partition, Offset: e.Offset, Position: string(e.Position),
			Timestamp: e.BrokerTime,
		},
		Handler: string(e.Handler), Reason: envelope.Reason(e.Reason), ErrorMessage: string(e.ErrorMessage), ErrorCode: string(e.ErrorCode),
		ErrorClass: string(e.ErrorClass), Rule: string(e.Rule), Cause: Normalize(string(e.ErrorMessage)), Fingerprint: e.Fingerprint,
		Attempts: e.Attempts, Status: e.Status, Version: e.EntryVersion, RedriveCount: e.RedriveCount, RedriveBudget: e.RedriveBudget,
		DeathRedrive: e.DeathRedrive, SeenCount: e.SeenCount, LeaseUntil: e.LeaseUntil, Run: e.Run, CreatedAt: e.CreatedAt,
		FirstFailureAt: e.FirstFailureAt, DiedAt: e.DiedAt, LastSeenAt: e.LastSeenAt, LastRedriveAt: e.LastRedriveAt,
		SucceededAt: e.SucceededAt, ResolvedAt: e.ResolvedAt, ResolvedBy: string(e.ResolvedBy), ChangedAt: e.ChangedAt,
		ChangedBy: string(e.ChangedBy), Revision: e.Revision,
	}}
	copy(x.Entry.Key[:], e.Key)
	current := false
	for i := range l.Bodies {
		b := &l.Bodies[i]
		body := Body{
			Revision: b.Revision, UUID: string(b.UUID), ContentType: string(b.ContentType), Trace: string(b.Trace), Payload: b.Payload,
			Headers: make(map[string]string, len(b.Headers)),
		}
		for _, pair := range b.Headers {
			body.Headers[string(pair[0])] = string(pair[1])
		}
		body.SHA256 = digest(b.Payload)
		if string(body.SHA256[:]) != string(b.SHA256) {
			return nil, fmt.Errorf("%w: revision %d is damaged: its payload does not have its SHA-256", ErrInvalid, b.Revision)
		}
		if b.Revision == e.Revision {
			current = true
			x.Entry.Size = int64(len(b.Payload))
		}
		x.Bodies = append(x.Bodies, body)
	}
	switch {
	case !current:
		return nil, fmt.Errorf("%w: the body of revision %d is missing", ErrInvalid, e.Revision)
	case len(e.Key) != len(x.Entry.Key) || x.Entry.Key == Key{}, e.CreatedAt.IsZero(), !e.Status.valid(), e.EntryVersion < 1:
		return nil, fmt.Errorf("%w: not an entry: key, created_at, status or version is missing", ErrInvalid)
	}
	return x, nil
}

func readLine(data []byte) (*Exported, error) {
	var line exportLine
	if err := json.Unmarshal(data, &line); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if line.Version < 1 || line.Version > exportVersion {
		return nil, fmt.Errorf("%w: version %d of the export format is not one that this program reads (1 to %d)",
			ErrInvalid, line.Version, exportVersion)
	}
	if line.Redacted {
		return nil, fmt.Errorf("%w: this export was made for somebody who may not see everything, and lacks what was hidden: "+
			"export again with a role that may", ErrInvalid)
	}
	return line.exported()
}
