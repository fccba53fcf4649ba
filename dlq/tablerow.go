package dlq

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

// tableRow is a row of a dead letter table kept by a service itself, with its columns, as row_to_json writes it.
type tableRow struct {
	ID            json.RawMessage `json:"id"`
	EventID       *string         `json:"event_id"`
	EventType     string          `json:"event_type"`
	SourceTable   string          `json:"source_table"`
	SourceID      string          `json:"source_id"`
	EventPayload  json.RawMessage `json:"event_payload"`
	ErrorMessage  string          `json:"error_message"`
	StackTrace    string          `json:"stack_trace"`
	RetryCount    int             `json:"retry_count"`
	MaxRetries    *int            `json:"max_retries"`
	Status        string          `json:"status"`
	CreatedAt     rowTime         `json:"created_at"`
	LastRetryAt   rowTime         `json:"last_retry_at"`
	ResolvedAt    rowTime         `json:"resolved_at"`
	ResolvedBy    string          `json:"resolved_by"`
	KafkaOffset   *int64          `json:"kafka_offset"`
	KafkaPart     *int32          `json:"kafka_partition"`
	KafkaTopic    string          `json:"kafka_topic"`
	CorrelationID string          `json:"correlation_id"`
}

// rowTime reads a timestamp with a zone or, as UTC, without one.
type rowTime struct{ time.Time }

// UnmarshalJSON reads the formats in which databases write a timestamp.
func (t *rowTime) UnmarshalJSON(data []byte) error {
	var text *string
	if err := json.Unmarshal(data, &text); err != nil {
		return fmt.Errorf("expected a time as text, not %.40s", data)
	}
	if text == nil || *text == "" {
		return nil
	}
	for _, layout := range []string{
		time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00",
		"2006-01-02 15:04:05.999999999Z07",
		"2006-01-02 15:04:05.999999999",
	} {
		if at, err := time.Parse(layout, *text); err == nil {
			t.Time = at.UTC().Truncate(time.Microsecond)
			return nil
		}
	}
	return fmt.Errorf("%.40q is not a time such as 2025-11-20T07:30:00Z", *text)
}

// isTableRow reports whether a line is a row of such a table rather than of our export.
func isTableRow(data []byte) bool {
	var line map[string]json.RawMessage
	if json.Unmarshal(data, &line) != nil {
		return false
	}
	_, ours := line["v"]
	_, event := line["event_id"]
	_, payload := line["event_payload"]
	return !ours && (event || payload)
}

// tableFormat is the format of rows taken over from a table; see envelope.Collected.
const tableFormat = "table"

// readTableRow converts a row to an entry.
func readTableRow(data []byte) (*driver.Exported, error) {
	var row tableRow
	if err := json.Unmarshal(data, &row); err != nil {
		return nil, fmt.Errorf("%w: a row with the columns of dlq_events: %w", ErrInvalid, err)
	}
	status := cmp.Or(Status(strings.ToUpper(strings.TrimSpace(row.Status))), Pending)
	switch {
	case row.EventID == nil:
		return nil, fmt.Errorf("%w: event_id is missing", ErrInvalid)
	case row.CreatedAt.IsZero():
		return nil, fmt.Errorf("%w: created_at is missing", ErrInvalid)
	case len(row.EventPayload) == 0:
		return nil, fmt.Errorf("%w: event_payload is missing", ErrInvalid)
	case !status.Valid() || status == Retrying:
		return nil, fmt.Errorf("%w: status %.40q: one of %s, %s, %s, %s", ErrInvalid, row.Status, Pending, Parked, Resolved,
			Discarded)
	case row.RetryCount < 0 || row.MaxRetries != nil && *row.MaxRetries < 0:
		return nil, fmt.Errorf("%w: retry_count and max_retries must not be negative", ErrInvalid)
	}
	x := &driver.Exported{Entry: row.entry(status), Bodies: []Body{row.body()}}
	e := &x.Entry
	e.Key = keyOf(&e.Origin, e.Handler, e.EventID, x.Bodies[0].Payload, 0)
	e.Size = int64(len(x.Bodies[0].Payload))
	completeExported(e)
	return x, nil
}

func (row *tableRow) entry(status Status) Entry {
	e := Entry{
		EventID: *row.EventID, EventType: cmp.Or(row.EventType, "unknown"), SourceTable: row.SourceTable,
		SourceID: row.SourceID, CorrelationID: row.CorrelationID,
		Origin: envelope.Origin{Topic: row.KafkaTopic, Partition: row.KafkaPart, Offset: row.KafkaOffset},
		Reason: envelope.ReasonExhausted, ErrorMessage: row.ErrorMessage, Attempts: 1, Status: status, Version: 1,
		RedriveCount: row.RetryCount, RedriveBudget: DefaultRedriveBudget, CreatedAt: row.CreatedAt.Time,
		LastRedriveAt: row.LastRetryAt.Time, ResolvedAt: row.ResolvedAt.Time, ResolvedBy: row.ResolvedBy,
	}
	if row.KafkaTopic != "" {
		e.Origin.Broker = "kafka"
	}
	if id := strings.Trim(string(row.ID), `"`); id != "" && id != "null" {
		e.Origin.Position = "dlq_events/" + id // identifies the row, whatever else rows share
	}
	if row.MaxRetries != nil {
		e.RedriveBudget = *row.MaxRetries
	}
	e.DeathRedrive = e.RedriveCount // every redrive has died again
	if (status == Resolved || status == Discarded) && e.ResolvedAt.IsZero() {
		e.ResolvedAt = e.CreatedAt
		if e.LastRedriveAt.After(e.CreatedAt) {
			e.ResolvedAt = e.LastRedriveAt
		}
	}
	if status == Pending || status == Parked {
		e.ResolvedAt, e.ResolvedBy = time.Time{}, ""
	}
	return e
}

// body is the message that a redrive sends: the table's payload, and the ids as headers.
func (row *tableRow) body() Body {
	payload := []byte(row.EventPayload)
	var compact bytes.Buffer
	if json.Compact(&compact, payload) == nil {
		payload = compact.Bytes()
	}
	b := Body{
		UUID: *row.EventID, Payload: payload, Headers: map[string]string{envelope.KeyMessageID: *row.EventID},
		Trace:  row.StackTrace,
		SHA256: sha256.Sum256(payload), Collected: envelope.Collected{From: "dlq_events", Format: tableFormat},
	}
	if row.CorrelationID != "" {
		b.Headers[envelope.KeyCorrelationID] = row.CorrelationID
	}
	return b
}
