package sqlstore

import (
	"database/sql"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/dlq"
)

// entryColumns are the columns of dlq_entries but id, in the order of entryValues.
var entryColumns = []string{
	"dedup_key", "event_id", "event_type", "source_table", "source_id", "correlation_id",
	"broker", "topic", "consumer", "handler", "exchange", "routing_key", "message_key",
	"kafka_partition", "kafka_offset", "position", "broker_time",
	"reason", "error_message", "error_code", "error_class", "rule", "fingerprint", "attempts",
	"status", "version", "retry_count", "max_retries", "death_redrive", "seen_count", "lease_until", "run_id",
	"created_at", "first_failure_at", "died_at", "last_seen_at", "last_retry_at", "succeeded_at",
	"resolved_at", "resolved_by", "changed_at", "changed_by", "revision", "payload_size",
}

var selectEntry = "id, " + strings.Join(entryColumns, ", ")

func entryValues(d dialect, e *dlq.Entry) []any {
	o := &e.Origin
	return []any{
		e.Key[:], e.EventID, e.EventType, null(e.SourceTable), null(e.SourceID), null(e.CorrelationID),
		o.Broker, o.Topic, o.Consumer, e.Handler, null(o.Exchange), nullBytes([]byte(o.RoutingKey)), nullBytes(o.Key),
		nullable(o.Partition), nullable(o.Offset), null(o.Position), d.time(o.Timestamp),
		string(e.Reason), e.ErrorMessage, null(e.ErrorCode), null(e.ErrorClass), null(e.Rule), e.Fingerprint, e.Attempts,
		string(e.Status), e.Version, e.RedriveCount, e.RedriveBudget, e.DeathRedrive, e.SeenCount, d.time(e.LeaseUntil), null(e.Run),
		d.time(e.CreatedAt), d.time(e.FirstFailureAt), d.time(e.DiedAt), d.time(e.LastSeenAt), d.time(e.LastRedriveAt),
		d.time(e.SucceededAt), d.time(e.ResolvedAt), null(e.ResolvedBy), d.time(e.ChangedAt), e.ChangedBy, e.Revision, e.Size,
	}
}

// scanEntry reads a row of selectEntry. The cause is not in it: it follows from the error.
func scanEntry(row interface{ Scan(dest ...any) error }) (dlq.Entry, error) {
	var e dlq.Entry
	var key, routingKey, messageKey []byte
	var partition sql.Null[int32]
	var offset sql.Null[int64]
	o := &e.Origin
	err := row.Scan(
		&e.ID, &key, &e.EventID, &e.EventType, textValue{&e.SourceTable}, textValue{&e.SourceID}, textValue{&e.CorrelationID},
		&o.Broker, &o.Topic, &o.Consumer, &e.Handler, textValue{&o.Exchange}, &routingKey, &messageKey,
		&partition, &offset, textValue{&o.Position}, timeValue{&o.Timestamp},
		&e.Reason, &e.ErrorMessage, textValue{&e.ErrorCode}, textValue{&e.ErrorClass}, textValue{&e.Rule}, &e.Fingerprint, &e.Attempts,
		&e.Status, &e.Version, &e.RedriveCount, &e.RedriveBudget, &e.DeathRedrive, &e.SeenCount, timeValue{&e.LeaseUntil}, textValue{&e.Run},
		timeValue{&e.CreatedAt}, timeValue{&e.FirstFailureAt}, timeValue{&e.DiedAt}, timeValue{&e.LastSeenAt}, timeValue{&e.LastRedriveAt},
		timeValue{&e.SucceededAt}, timeValue{&e.ResolvedAt}, textValue{&e.ResolvedBy}, timeValue{&e.ChangedAt}, &e.ChangedBy, &e.Revision, &e.Size,
	)
	if err != nil {
		return e, err
	}
	copy(e.Key[:], key)
	o.RoutingKey, o.Key = string(routingKey), messageKey
	if partition.Valid {
		o.Partition = &partition.V
	}
	if offset.Valid {
		o.Offset = &offset.V
	}
	e.Cause = dlq.Normalize(e.ErrorMessage)
	return e, nil
}

// scanEntries reads and closes rows.
func scanEntries(rows *sql.Rows) ([]dlq.Entry, error) {
	defer rows.Close()
	var entries []dlq.Entry
	for rows.Next() {
		e, err := scanEntry(rows)
		if err != nil {
			return nil, err
		}
		if len(entries) == cap(entries) {
			entries = slices.Grow(entries, max(8, len(entries))) // append would copy a page of 500, which are large, many more times
		}
		entries = append(entries, e)
	}
	return entries, rows.Err()
}

func nullBytes(b []byte) any {
	if len(b) == 0 {
		return nil
	}
	return b
}

func nullable[T any](p *T) any {
	if p == nil {
		return nil
	}
	return *p
}
