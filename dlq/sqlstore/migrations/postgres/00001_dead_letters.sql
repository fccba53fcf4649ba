-- +goose Up

-- What is filtered, sorted and changed. One row a dead letter; the message itself is in dlq_bodies, so that this table stays
-- narrow. An id is never given again, because redriven messages carry ids.
CREATE TABLE dlq_entries (
    id               BIGSERIAL PRIMARY KEY,
    dedup_key        BYTEA       NOT NULL,
    event_id         TEXT        NOT NULL,
    event_type       TEXT        NOT NULL,
    source_table     TEXT,
    source_id        TEXT,
    correlation_id   TEXT,
    broker           TEXT        NOT NULL,
    topic            TEXT        NOT NULL,
    consumer         TEXT        NOT NULL,
    handler          TEXT        NOT NULL,
    exchange         TEXT,
    routing_key      BYTEA,
    message_key      BYTEA,
    kafka_partition  INTEGER,
    kafka_offset     BIGINT,
    position         TEXT,
    broker_time      TIMESTAMPTZ,
    reason           TEXT        NOT NULL,
    error_message    TEXT        NOT NULL,
    error_code       TEXT,
    error_class      TEXT,
    rule             TEXT,
    fingerprint      TEXT        NOT NULL,
    attempts         INTEGER     NOT NULL CHECK (attempts >= 0),
    status           VARCHAR(20) NOT NULL DEFAULT 'PENDING'
        CHECK (status IN ('PENDING', 'RETRYING', 'RESOLVED', 'DISCARDED', 'PARKED')),
    version          BIGINT      NOT NULL DEFAULT 1,
    retry_count      INTEGER     NOT NULL DEFAULT 0,
    max_retries      INTEGER     NOT NULL DEFAULT 3,
    death_redrive    INTEGER     NOT NULL DEFAULT 0,
    seen_count       INTEGER     NOT NULL DEFAULT 1,
    lease_until      TIMESTAMPTZ,
    run_id           TEXT,
    created_at       TIMESTAMPTZ NOT NULL DEFAULT CURRENT_TIMESTAMP,
    first_failure_at TIMESTAMPTZ NOT NULL,
    died_at          TIMESTAMPTZ NOT NULL,
    last_seen_at     TIMESTAMPTZ NOT NULL,
    last_retry_at    TIMESTAMPTZ,
    succeeded_at     TIMESTAMPTZ,
    resolved_at      TIMESTAMPTZ,
    resolved_by      TEXT,
    changed_at       TIMESTAMPTZ NOT NULL,
    changed_by       TEXT        NOT NULL,
    revision         INTEGER     NOT NULL DEFAULT 0,
    payload_size     BIGINT      NOT NULL
);
-- C20's names, here and below; each ends in the order of a listing, so that a page is a range of the index.
CREATE INDEX idx_dlq_status      ON dlq_entries (status, created_at, id);
CREATE INDEX idx_dlq_event_type  ON dlq_entries (event_type, status, created_at, id);
CREATE INDEX idx_dlq_fingerprint ON dlq_entries (fingerprint, status, created_at, id);
CREATE INDEX idx_dlq_topic       ON dlq_entries (topic, status, created_at, id);
CREATE INDEX idx_dlq_run_id      ON dlq_entries (run_id, created_at, id) WHERE run_id IS NOT NULL;
CREATE INDEX idx_dlq_resolved_at ON dlq_entries (resolved_at) WHERE resolved_at IS NOT NULL;
-- For ranges of time in SQL. Not a btree: the planner thinks that the newest rows are of every status, and would read a table of waiting
-- entries backwards to find the resolved ones behind them.
CREATE INDEX idx_dlq_created_at  ON dlq_entries USING brin (created_at) WITH (pages_per_range = 32, autosummarize = on);

-- By what an entry is found, which never changes. A change of status writes a new version of the row, and with it a new entry into each
-- index of its table: those by ids and digests would be pages all over the disk, and a bulk redrive three times as slow.
CREATE TABLE dlq_keys (
    dedup_key      BYTEA  PRIMARY KEY,
    entry_id       BIGINT NOT NULL DEFAULT nextval('dlq_entries_id_seq') UNIQUE,
    event_id       TEXT   NOT NULL,
    source_id      TEXT,
    correlation_id TEXT
);
CREATE INDEX idx_dlq_event_id       ON dlq_keys (event_id);
CREATE INDEX idx_dlq_source_id      ON dlq_keys (source_id) WHERE source_id IS NOT NULL;
CREATE INDEX idx_dlq_correlation_id ON dlq_keys (correlation_id) WHERE correlation_id IS NOT NULL;

-- The messages, byte for byte. Revision 0 is what died first; a message that changed on its way adds one.
CREATE TABLE dlq_bodies (
    entry_id       BIGINT  NOT NULL,
    revision       INTEGER NOT NULL,
    message_uuid   BYTEA   NOT NULL,
    payload        BYTEA   NOT NULL,
    payload_json   JSONB,            -- NULL for a payload that is not JSON, or that jsonb cannot hold
    payload_sha256 BYTEA   NOT NULL,
    content_type   TEXT,
    headers        TEXT    NOT NULL, -- {"text": {...}, "binary": [[base64, base64], ...]}: lossless, which jsonb is not
    stack_trace    TEXT,
    PRIMARY KEY (entry_id, revision)
);

-- Kept statistics: changed in the transaction of every change, read instead of the entries.
CREATE TABLE dlq_groups (
    fingerprint   TEXT        PRIMARY KEY,
    cause         TEXT        NOT NULL,
    sample        TEXT        NOT NULL,
    error_class   TEXT        NOT NULL,
    handler       TEXT        NOT NULL,
    pending       BIGINT      NOT NULL DEFAULT 0,
    retrying      BIGINT      NOT NULL DEFAULT 0,
    resolved      BIGINT      NOT NULL DEFAULT 0,
    discarded     BIGINT      NOT NULL DEFAULT 0,
    first_seen    TIMESTAMPTZ NOT NULL,
    last_seen     TIMESTAMPTZ NOT NULL,
    last_entry_id BIGINT      NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE dlq_counts (
    event_type    TEXT   NOT NULL,
    topic         TEXT   NOT NULL,
    pending       BIGINT NOT NULL DEFAULT 0,
    retrying      BIGINT NOT NULL DEFAULT 0,
    resolved      BIGINT NOT NULL DEFAULT 0,
    discarded     BIGINT NOT NULL DEFAULT 0,
    resolution_ms BIGINT NOT NULL DEFAULT 0, -- sum over the resolved ones, from created_at to resolved_at
    PRIMARY KEY (event_type, topic)
) WITH (fillfactor = 50);
CREATE TABLE dlq_hours (
    hour        TIMESTAMPTZ NOT NULL,
    fingerprint TEXT        NOT NULL,
    entries     BIGINT      NOT NULL DEFAULT 0,
    PRIMARY KEY (hour, fingerprint)
) WITH (fillfactor = 50);

-- What transactions of the application left to be counted: the statistics' rows would stay locked as long as they are open.
CREATE TABLE dlq_uncounted (
    id     BIGSERIAL PRIMARY KEY,
    deltas TEXT      NOT NULL
);

-- Who did what, when and why. Only ever appended to.
CREATE TABLE dlq_audit (
    id          BIGSERIAL   PRIMARY KEY,
    at          TIMESTAMPTZ NOT NULL,
    entry_id    BIGINT      NOT NULL,
    run_id      TEXT,
    actor       TEXT        NOT NULL,
    action      TEXT        NOT NULL,
    note        TEXT        NOT NULL,
    from_status TEXT        NOT NULL,
    to_status   TEXT        NOT NULL,
    version     BIGINT      NOT NULL,
    detail      TEXT
);
CREATE INDEX idx_dlq_audit_entry_id ON dlq_audit (entry_id, at, id);
CREATE INDEX idx_dlq_audit_at       ON dlq_audit (at, id);
CREATE INDEX idx_dlq_audit_run_id   ON dlq_audit (run_id, at, id) WHERE run_id IS NOT NULL;
-- +goose StatementBegin
CREATE FUNCTION dlq_audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'dlq_audit is append-only';
END
$$;
-- +goose StatementEnd
CREATE TRIGGER dlq_audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON dlq_audit
    FOR EACH STATEMENT EXECUTE FUNCTION dlq_audit_is_append_only();

-- C19's table as queries see it: its columns under their names and in their order, then ours. event_payload is NULL for a
-- payload that is not JSON, and correlation_id for an id that is no UUID; payload and correlation always have what there was. The
-- left joins are on unique keys: a query that uses no column of a table does not read it.
CREATE VIEW dlq_events AS
SELECT e.id, k.event_id, e.event_type, e.source_table, k.source_id, b.payload_json AS event_payload,
       e.error_message, b.stack_trace, e.retry_count, e.max_retries, e.status, e.created_at, e.last_retry_at, e.resolved_at,
       e.resolved_by, e.kafka_offset, e.kafka_partition, e.topic AS kafka_topic,
       CASE WHEN k.correlation_id ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN CAST(k.correlation_id AS UUID) END AS correlation_id,
       k.correlation_id AS correlation, b.payload, b.payload_sha256, e.payload_size, b.content_type, b.headers, b.message_uuid, e.broker, e.topic, e.consumer,
       e.handler, e.exchange, e.routing_key, e.message_key, e.position, e.broker_time, e.reason, e.error_class, e.error_code,
       e.rule, e.fingerprint, e.attempts, e.version, e.seen_count, e.death_redrive, e.lease_until, e.run_id,
       e.first_failure_at, e.died_at, e.last_seen_at, e.succeeded_at, e.changed_at, e.changed_by, e.revision, e.dedup_key
FROM dlq_entries e
LEFT JOIN dlq_keys k ON k.entry_id = e.id
LEFT JOIN dlq_bodies b ON b.entry_id = e.id AND b.revision = e.revision;

-- C35's archive: the same columns, as they were when the entry was purged. The store has made the schema, and writes its name here when it
-- is another one.
CREATE TABLE archive.dlq_events_archive (
    id BIGINT, event_id TEXT, event_type TEXT, source_table TEXT, source_id TEXT, event_payload JSONB,
    error_message TEXT, stack_trace TEXT, retry_count INTEGER, max_retries INTEGER, status VARCHAR(20), created_at TIMESTAMPTZ,
    last_retry_at TIMESTAMPTZ, resolved_at TIMESTAMPTZ, resolved_by TEXT, kafka_offset BIGINT, kafka_partition INTEGER,
    kafka_topic TEXT, correlation_id UUID, correlation TEXT, payload BYTEA, payload_sha256 BYTEA, payload_size BIGINT, content_type TEXT,
    headers TEXT, message_uuid BYTEA, broker TEXT, topic TEXT, consumer TEXT, handler TEXT, exchange TEXT, routing_key BYTEA,
    message_key BYTEA, position TEXT, broker_time TIMESTAMPTZ, reason TEXT, error_class TEXT, error_code TEXT, rule TEXT,
    fingerprint TEXT, attempts INTEGER, version BIGINT, seen_count INTEGER, death_redrive INTEGER, lease_until TIMESTAMPTZ,
    run_id TEXT, first_failure_at TIMESTAMPTZ, died_at TIMESTAMPTZ, last_seen_at TIMESTAMPTZ, succeeded_at TIMESTAMPTZ,
    changed_at TIMESTAMPTZ, changed_by TEXT, revision INTEGER, dedup_key BYTEA,
    archived_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX idx_dlq_archive_id       ON archive.dlq_events_archive (id);
CREATE INDEX idx_dlq_archive_event_id ON archive.dlq_events_archive (event_id);

-- +goose Down
DROP TABLE archive.dlq_events_archive;
DROP VIEW dlq_events;
DROP TABLE dlq_audit;
DROP FUNCTION dlq_audit_is_append_only;
DROP TABLE dlq_uncounted;
DROP TABLE dlq_hours;
DROP TABLE dlq_counts;
DROP TABLE dlq_groups;
DROP TABLE dlq_bodies;
DROP TABLE dlq_keys;
DROP TABLE dlq_entries;
