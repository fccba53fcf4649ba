-- +goose Up

-- Where a redrive of an entry is published, as the broker of its consumer named it: another process may have another naming scheme. NULL for
-- entries from before, and where topic and consumer are the whole address.
ALTER TABLE dlq_entries ADD COLUMN redrive_to TEXT;
-- In the archive it stands where the view has it: before archived_at, which people's own INSERT ... SELECT * writes last.
ALTER TABLE dlq_events_archive RENAME COLUMN archived_at TO archived_before;
ALTER TABLE dlq_events_archive ADD COLUMN redrive_to TEXT;
ALTER TABLE dlq_events_archive ADD COLUMN archived_at TEXT NOT NULL DEFAULT '';
UPDATE dlq_events_archive SET archived_at = archived_before;
ALTER TABLE dlq_events_archive DROP COLUMN archived_before;
DROP VIEW dlq_events;
CREATE VIEW dlq_events AS
SELECT e.id, e.event_id, e.event_type, e.source_table, e.source_id,
       CASE WHEN b.payload_json = 1 THEN CAST(b.payload AS TEXT) END AS event_payload,
       e.error_message, b.stack_trace, e.retry_count, e.max_retries, e.status, e.created_at, e.last_retry_at, e.resolved_at,
       e.resolved_by, e.kafka_offset, e.kafka_partition, e.topic AS kafka_topic, e.correlation_id,
       e.correlation_id AS correlation, b.payload, b.payload_sha256, e.payload_size, b.content_type, b.headers, b.message_uuid, e.broker, e.topic, e.consumer,
       e.handler, e.exchange, e.routing_key, e.message_key, e.position, e.broker_time, e.reason, e.error_class, e.error_code,
       e.rule, e.fingerprint, e.attempts, e.version, e.seen_count, e.death_redrive, e.lease_until, e.run_id,
       e.first_failure_at, e.died_at, e.last_seen_at, e.succeeded_at, e.changed_at, e.changed_by, e.revision, e.dedup_key,
       e.redrive_to
FROM dlq_entries e
LEFT JOIN dlq_bodies b ON b.entry_id = e.id AND b.revision = e.revision;

-- +goose Down
DROP VIEW dlq_events;
CREATE VIEW dlq_events AS
SELECT e.id, e.event_id, e.event_type, e.source_table, e.source_id,
       CASE WHEN b.payload_json = 1 THEN CAST(b.payload AS TEXT) END AS event_payload,
       e.error_message, b.stack_trace, e.retry_count, e.max_retries, e.status, e.created_at, e.last_retry_at, e.resolved_at,
       e.resolved_by, e.kafka_offset, e.kafka_partition, e.topic AS kafka_topic, e.correlation_id,
       e.correlation_id AS correlation, b.payload, b.payload_sha256, e.payload_size, b.content_type, b.headers, b.message_uuid, e.broker, e.topic, e.consumer,
       e.handler, e.exchange, e.routing_key, e.message_key, e.position, e.broker_time, e.reason, e.error_class, e.error_code,
       e.rule, e.fingerprint, e.attempts, e.version, e.seen_count, e.death_redrive, e.lease_until, e.run_id,
       e.first_failure_at, e.died_at, e.last_seen_at, e.succeeded_at, e.changed_at, e.changed_by, e.revision, e.dedup_key
FROM dlq_entries e
LEFT JOIN dlq_bodies b ON b.entry_id = e.id AND b.revision = e.revision;
ALTER TABLE dlq_events_archive DROP COLUMN redrive_to;
ALTER TABLE dlq_entries DROP COLUMN redrive_to;
