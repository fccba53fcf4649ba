-- +goose Up
-- +goose StatementBegin
LOCK TABLE dlq_schema_version; -- a process that was killed may still be migrating: see sqldb.Schema.Up

-- What is filtered, sorted and changed: one row for each dead letter. The message is in dlq_bodies, so that this table stays
-- narrow. Ids are never reused, because redriven messages carry them.
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
    payload_size     BIGINT      NOT NULL,
    redrive_to       TEXT        -- where its broker publishes a redrive; NULL if topic and consumer are the whole address
);
-- Under the names that others have used, here and below; each ends in the order of a listing, so that a page is a range of the index.
CREATE INDEX idx_dlq_status      ON dlq_entries (status, created_at, id);
CREATE INDEX idx_dlq_event_type  ON dlq_entries (event_type, status, created_at, id);
CREATE INDEX idx_dlq_fingerprint ON dlq_entries (fingerprint, status, created_at, id);
CREATE INDEX idx_dlq_topic       ON dlq_entries (topic, status, created_at, id);
CREATE INDEX idx_dlq_run_id      ON dlq_entries (run_id, created_at, id) WHERE run_id IS NOT NULL;
CREATE INDEX idx_dlq_resolved_at ON dlq_entries (resolved_at) WHERE resolved_at IS NOT NULL;
-- For ranges of time in SQL. Not a btree: the planner assumes that statuses are spread evenly over time, and would read a table of
-- pending entries backwards to find the resolved ones before them.
CREATE INDEX idx_dlq_created_at  ON dlq_entries USING brin (created_at) WITH (pages_per_range = 32, autosummarize = on);

-- The ids by which an entry is found, which never change. A change of status writes a new version of a row of dlq_entries, and into
-- each of its indexes: with indexes on ids and digests it would write pages all over the disk, and a bulk redrive would take three
-- times as long.
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

-- The messages, byte for byte. Revision 0 is the original; a message that was changed adds one.
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

-- Statistics: updated in the transaction of every change, and read instead of the entries.
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
    last_entry_id BIGINT      NOT NULL,
    parked        BIGINT      NOT NULL DEFAULT 0 -- waiting for a person
) WITH (fillfactor = 50);
CREATE TABLE dlq_counts (
    event_type    TEXT   NOT NULL,
    topic         TEXT   NOT NULL,
    pending       BIGINT NOT NULL DEFAULT 0,
    retrying      BIGINT NOT NULL DEFAULT 0,
    resolved      BIGINT NOT NULL DEFAULT 0,
    discarded     BIGINT NOT NULL DEFAULT 0,
    resolution_ms BIGINT NOT NULL DEFAULT 0, -- sum of resolved_at - created_at of the resolved entries
    parked        BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (event_type, topic)
) WITH (fillfactor = 50);
CREATE TABLE dlq_hours (
    hour        TIMESTAMPTZ NOT NULL,
    fingerprint TEXT        NOT NULL,
    entries     BIGINT      NOT NULL DEFAULT 0,
    closed      BIGINT      NOT NULL DEFAULT 0,
    died_again  BIGINT      NOT NULL DEFAULT 0,
    PRIMARY KEY (hour, fingerprint)
) WITH (fillfactor = 50);
CREATE INDEX idx_dlq_hours_fingerprint ON dlq_hours (fingerprint, hour);

-- Changes of the statistics by transactions of the application, which would otherwise lock the statistics' rows until they end.
CREATE TABLE dlq_uncounted (
    id     BIGSERIAL PRIMARY KEY,
    deltas TEXT      NOT NULL
);

-- Who did what, when and why. Append-only.
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
CREATE FUNCTION dlq_audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'dlq_audit is append-only';
END
$$;
CREATE TRIGGER dlq_audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON dlq_audit
    FOR EACH STATEMENT EXECUTE FUNCTION dlq_audit_is_append_only();

-- The table of other systems as a view: their columns, in their order, then ours. event_payload is
-- NULL for a payload that is not JSON, and correlation_id for an id that is not a UUID; payload and correlation always have the
-- original. The left joins are on unique keys: a query that uses no column of a table does not read that table.
CREATE VIEW dlq_events AS
SELECT e.id, k.event_id, e.event_type, e.source_table, k.source_id, b.payload_json AS event_payload,
       e.error_message, b.stack_trace, e.retry_count, e.max_retries, e.status, e.created_at, e.last_retry_at, e.resolved_at,
       e.resolved_by, e.kafka_offset, e.kafka_partition, e.topic AS kafka_topic,
       CASE WHEN k.correlation_id ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN CAST(k.correlation_id AS UUID) END AS correlation_id,
       k.correlation_id AS correlation, b.payload, b.payload_sha256, e.payload_size, b.content_type, b.headers, b.message_uuid, e.broker, e.topic, e.consumer,
       e.handler, e.exchange, e.routing_key, e.message_key, e.position, e.broker_time, e.reason, e.error_class, e.error_code,
       e.rule, e.fingerprint, e.attempts, e.version, e.seen_count, e.death_redrive, e.lease_until, e.run_id,
       e.first_failure_at, e.died_at, e.last_seen_at, e.succeeded_at, e.changed_at, e.changed_by, e.revision, e.dedup_key,
       e.redrive_to
FROM dlq_entries e
LEFT JOIN dlq_keys k ON k.entry_id = e.id
LEFT JOIN dlq_bodies b ON b.entry_id = e.id AND b.revision = e.revision;

-- The archive: the columns of the view in their order, so that INSERT ... SELECT * FROM dlq_events works, as they were when the entry
-- was purged. The store creates the schema first, and replaces its name here when it is another one.
CREATE TABLE archive.dlq_events_archive (
    id BIGINT, event_id TEXT, event_type TEXT, source_table TEXT, source_id TEXT, event_payload JSONB,
    error_message TEXT, stack_trace TEXT, retry_count INTEGER, max_retries INTEGER, status VARCHAR(20), created_at TIMESTAMPTZ,
    last_retry_at TIMESTAMPTZ, resolved_at TIMESTAMPTZ, resolved_by TEXT, kafka_offset BIGINT, kafka_partition INTEGER,
    kafka_topic TEXT, correlation_id UUID, correlation TEXT, payload BYTEA, payload_sha256 BYTEA, payload_size BIGINT, content_type TEXT,
    headers TEXT, message_uuid BYTEA, broker TEXT, topic TEXT, consumer TEXT, handler TEXT, exchange TEXT, routing_key BYTEA,
    message_key BYTEA, position TEXT, broker_time TIMESTAMPTZ, reason TEXT, error_class TEXT, error_code TEXT, rule TEXT,
    fingerprint TEXT, attempts INTEGER, version BIGINT, seen_count INTEGER, death_redrive INTEGER, lease_until TIMESTAMPTZ,
    run_id TEXT, first_failure_at TIMESTAMPTZ, died_at TIMESTAMPTZ, last_seen_at TIMESTAMPTZ, succeeded_at TIMESTAMPTZ,
    changed_at TIMESTAMPTZ, changed_by TEXT, revision INTEGER, dedup_key BYTEA, redrive_to TEXT,
    archived_at TIMESTAMPTZ NOT NULL DEFAULT CURRENT_TIMESTAMP
);
CREATE INDEX idx_dlq_archive_id       ON archive.dlq_events_archive (id);
CREATE INDEX idx_dlq_archive_event_id ON archive.dlq_events_archive (event_id);
-- The earlier revisions; the archive of entries only has the last.
CREATE TABLE IF NOT EXISTS archive.dlq_bodies_archive (
    entry_id       BIGINT  NOT NULL,
    revision       INTEGER NOT NULL,
    message_uuid   BYTEA   NOT NULL,
    payload        BYTEA   NOT NULL,
    payload_json   JSONB,
    payload_sha256 BYTEA   NOT NULL,
    content_type   TEXT,
    headers        TEXT    NOT NULL,
    stack_trace    TEXT,
    PRIMARY KEY (entry_id, revision)
);

-- Redrive runs. The document is the run as JSON; values that steps change or that are searched have columns.
CREATE TABLE dlq_runs (
    seq         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id      TEXT    NOT NULL UNIQUE,
    state       TEXT    NOT NULL,
    version     BIGINT NOT NULL,
    created_at  TIMESTAMPTZ   NOT NULL,
    created_by  TEXT    NOT NULL,
    document    TEXT    NOT NULL,
    holder      TEXT    NOT NULL DEFAULT '',
    lease_until TIMESTAMPTZ,
    frozen_to   BIGINT NOT NULL DEFAULT 0,
    freeze_to   BIGINT NOT NULL DEFAULT 0,
    n_waiting   BIGINT NOT NULL DEFAULT 0,
    n_claimed   BIGINT NOT NULL DEFAULT 0,
    n_out       BIGINT NOT NULL DEFAULT 0,
    n_succeeded BIGINT NOT NULL DEFAULT 0,
    n_failed    BIGINT NOT NULL DEFAULT 0,
    n_lost      BIGINT NOT NULL DEFAULT 0,
    n_skipped   BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX idx_dlq_runs_created_at ON dlq_runs (created_at);
CREATE INDEX idx_dlq_runs_state      ON dlq_runs (state, created_at);

-- The frozen sets. The key is the order in which a run works through them.
CREATE TABLE dlq_run_items (
    run_seq       BIGINT NOT NULL,
    entry_id      BIGINT NOT NULL,
    state         TEXT    NOT NULL,
    version       BIGINT NOT NULL,
    revision      BIGINT NOT NULL,
    redrive       BIGINT NOT NULL DEFAULT 0,
    claimed_until TIMESTAMPTZ,
    settled_at    TIMESTAMPTZ,
    detail        TEXT,
    PRIMARY KEY (run_seq, entry_id)
);
CREATE INDEX idx_dlq_run_items_state ON dlq_run_items (run_seq, state, entry_id);

-- What people sent without approval, for the limit of what a person may send alone. A run that has not ended is open: it
-- counts, however old it is. The row whose key begins with "person" is the lock of that person's rows.
CREATE TABLE dlq_sends (
    send_key TEXT     NOT NULL PRIMARY KEY,
    person   TEXT NOT NULL,
    at       TIMESTAMPTZ NOT NULL,
    entries  BIGINT NOT NULL,
    is_open  INTEGER NOT NULL
);
CREATE INDEX idx_dlq_sends_person ON dlq_sends (person, at);

-- Tokens of the HTTP server by their digest, and the sessions of people who logged in, by the digest of their cookie.
CREATE TABLE dlq_tokens (
    name       TEXT     NOT NULL PRIMARY KEY,
    role       TEXT NOT NULL,
    digest     TEXT NOT NULL UNIQUE,
    created_at TIMESTAMPTZ NOT NULL,
    created_by TEXT NOT NULL,
    expires_at TIMESTAMPTZ,
    used_at    TIMESTAMPTZ,
    revoked_at TIMESTAMPTZ,
    revoked_by TEXT
);
CREATE TABLE dlq_sessions (
    digest     TEXT     NOT NULL PRIMARY KEY,
    name       TEXT NOT NULL,
    role       TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    used_at    TIMESTAMPTZ NOT NULL
);
CREATE INDEX idx_dlq_sessions_expires_at ON dlq_sessions (expires_at);

-- The last report of each process of a service. The row without a process has the pause that applies to all of them.
CREATE TABLE dlq_services (
    service   TEXT NOT NULL,
    process   TEXT NOT NULL,
    at        TIMESTAMPTZ NOT NULL,
    paused    SMALLINT NOT NULL DEFAULT 0,
    paused_by TEXT NOT NULL,
    report    TEXT NOT NULL,
    PRIMARY KEY (service, process)
);

-- What receivers were notified of. The row without a receiver names the process that notifies, and until when; a row without an id has
-- the time of its receiver's first notification.
CREATE TABLE dlq_notices (
    receiver TEXT NOT NULL,
    id       TEXT NOT NULL,
    at       TIMESTAMPTZ NOT NULL,
    holder   TEXT NOT NULL,
    PRIMARY KEY (receiver, id)
);
INSERT INTO dlq_notices (receiver, id, at, holder) VALUES ('', '', '2000-01-01 00:00:00+00', '');

-- The muted causes.
CREATE TABLE dlq_mutes (
    fingerprint TEXT NOT NULL PRIMARY KEY,
    muted_at    TIMESTAMPTZ NOT NULL,
    until       TIMESTAMPTZ,
    muted_by    TEXT NOT NULL,
    note        TEXT NOT NULL
);

-- The functions store new dead letters in one round trip, with statements that the server has planned. A parameter is a column of the
-- letters, v_ and its name, or of the statistics. Callers name the parameters, so their order does not matter.

-- Many letters, in the order of their keys. An array has an element for each letter, or none if the column is NULL in all of them.
-- Letters whose key exists are skipped. The result has an id for each letter, NULL for a skipped one.
CREATE FUNCTION dlq_put_letters(
    v_dedup_key BYTEA[], v_event_id TEXT[], v_event_type TEXT[], v_source_table TEXT[], v_source_id TEXT[], v_correlation_id TEXT[],
    v_broker TEXT[], v_topic TEXT[], v_consumer TEXT[], v_handler TEXT[], v_exchange TEXT[], v_routing_key BYTEA[], v_message_key BYTEA[],
    v_kafka_partition INTEGER[], v_kafka_offset BIGINT[], v_position TEXT[], v_broker_time TIMESTAMPTZ[], v_reason TEXT[],
    v_error_message TEXT[], v_error_code TEXT[], v_error_class TEXT[], v_rule TEXT[], v_fingerprint TEXT[], v_attempts INTEGER[],
    v_max_retries INTEGER[], v_created_at TIMESTAMPTZ[], v_first_failure_at TIMESTAMPTZ[], v_changed_by TEXT[], v_redrive_to TEXT[],
    v_message_uuid BYTEA[], v_payload BYTEA[], v_payload_json TEXT[], v_payload_sha256 BYTEA[], v_content_type TEXT[], v_headers TEXT[],
    v_stack_trace TEXT[],
    -- For each letter, the numbers of its group, its count and its hour among those below, from 1.
    in_group INTEGER[], in_count INTEGER[], in_hour INTEGER[],
    -- The statistics if all letters are new, in the order in which all callers lock them. group_at is the letter that died last.
    group_fingerprint TEXT[], group_cause TEXT[], group_sample TEXT[], group_class TEXT[], group_handler TEXT[],
    group_first TIMESTAMPTZ[], group_last TIMESTAMPTZ[], group_at INTEGER[], group_new BIGINT[],
    count_type TEXT[], count_topic TEXT[], count_new BIGINT[],
    hour_at TIMESTAMPTZ[], hour_fingerprint TEXT[], hour_new BIGINT[]
) RETURNS BIGINT[] LANGUAGE plpgsql AS $$
DECLARE
    ids   BIGINT[];
    found BYTEA[];
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true); -- the database may have switched it off
    WITH k AS (
        INSERT INTO dlq_keys (dedup_key, event_id, source_id, correlation_id)
        SELECT unnest(v_dedup_key), unnest(v_event_id), unnest(v_source_id), unnest(v_correlation_id)
        ON CONFLICT (dedup_key) DO NOTHING RETURNING entry_id, dedup_key)
    SELECT array_agg(entry_id), array_agg(dedup_key) INTO ids, found FROM k;
    IF found IS NULL THEN
        RETURN ids;
    END IF;
    IF found <> v_dedup_key THEN -- not all are new: recompute the statistics
        SELECT array_agg(f.id ORDER BY v.n) INTO ids
            FROM unnest(v_dedup_key) WITH ORDINALITY v (key, n) LEFT JOIN unnest(found, ids) f (key, id) ON f.key = v.key;
        SELECT array_agg(coalesce(c.new, 0) ORDER BY g.n), array_agg(CASE WHEN ids[g.at] IS NULL THEN c.last ELSE g.at END ORDER BY g.n)
            INTO group_new, group_at
            FROM unnest(group_at) WITH ORDINALITY g (at, n) LEFT JOIN (
                SELECT v.at, count(*) AS new, max(v.n) AS last FROM unnest(in_group, ids) WITH ORDINALITY v (at, id, n)
                WHERE v.id IS NOT NULL GROUP BY v.at) c ON c.at = g.n;
        SELECT array_agg(coalesce(c.new, 0) ORDER BY g.n) INTO count_new
            FROM generate_subscripts(count_new, 1) g (n) LEFT JOIN (
                SELECT v.at, count(*) AS new FROM unnest(in_count, ids) v (at, id) WHERE v.id IS NOT NULL GROUP BY v.at) c ON c.at = g.n;
        SELECT array_agg(coalesce(c.new, 0) ORDER BY g.n) INTO hour_new
            FROM generate_subscripts(hour_new, 1) g (n) LEFT JOIN (
                SELECT v.at, count(*) AS new FROM unnest(in_hour, ids) v (at, id) WHERE v.id IS NOT NULL GROUP BY v.at) c ON c.at = g.n;
    END IF;
    INSERT INTO dlq_entries (id, dedup_key, event_id, event_type, source_table, source_id, correlation_id, broker, topic, consumer, handler,
        exchange, routing_key, message_key, kafka_partition, kafka_offset, position, broker_time, reason, error_message, error_code,
        error_class, rule, fingerprint, attempts, max_retries, created_at, first_failure_at, died_at, last_seen_at, changed_at, changed_by,
        payload_size, redrive_to)
    SELECT v.id, v.dedup_key, v.event_id, v.event_type, v.source_table, v.source_id, v.correlation_id, v.broker, v.topic, v.consumer,
        v.handler, v.exchange, v.routing_key, v.message_key, v.kafka_partition, v.kafka_offset, v.position, v.broker_time, v.reason,
        v.error_message, v.error_code, v.error_class, v.rule, v.fingerprint, v.attempts, v.max_retries, v.created_at,
        v.first_failure_at, v.created_at, v.created_at, v.created_at, v.changed_by, octet_length(v.payload), v.redrive_to
    FROM (SELECT unnest(ids) AS id, unnest(v_dedup_key) AS dedup_key, unnest(v_event_id) AS event_id, unnest(v_event_type) AS event_type,
        unnest(v_source_table) AS source_table, unnest(v_source_id) AS source_id, unnest(v_correlation_id) AS correlation_id,
        unnest(v_broker) AS broker, unnest(v_topic) AS topic, unnest(v_consumer) AS consumer, unnest(v_handler) AS handler,
        unnest(v_exchange) AS exchange, unnest(v_routing_key) AS routing_key, unnest(v_message_key) AS message_key,
        unnest(v_kafka_partition) AS kafka_partition, unnest(v_kafka_offset) AS kafka_offset, unnest(v_position) AS position,
        unnest(v_broker_time) AS broker_time, unnest(v_reason) AS reason, unnest(v_error_message) AS error_message,
        unnest(v_error_code) AS error_code, unnest(v_error_class) AS error_class, unnest(v_rule) AS rule,
        unnest(v_fingerprint) AS fingerprint, unnest(v_attempts) AS attempts, unnest(v_max_retries) AS max_retries,
        unnest(v_created_at) AS created_at, unnest(v_first_failure_at) AS first_failure_at, unnest(v_changed_by) AS changed_by,
        unnest(v_payload) AS payload, unnest(v_redrive_to) AS redrive_to) v
    WHERE v.id IS NOT NULL;
    INSERT INTO dlq_bodies (entry_id, revision, message_uuid, payload, payload_json, payload_sha256, content_type, headers, stack_trace)
    SELECT v.id, 0, v.message_uuid, v.payload, v.payload_json::jsonb, v.payload_sha256, v.content_type, v.headers, v.stack_trace
    FROM (SELECT unnest(ids) AS id, unnest(v_message_uuid) AS message_uuid, unnest(v_payload) AS payload,
        unnest(v_payload_json) AS payload_json, unnest(v_payload_sha256) AS payload_sha256, unnest(v_content_type) AS content_type,
        unnest(v_headers) AS headers, unnest(v_stack_trace) AS stack_trace) v
    WHERE v.id IS NOT NULL;
    INSERT INTO dlq_groups (fingerprint, cause, sample, error_class, handler, pending, first_seen, last_seen, last_entry_id)
    SELECT v.fingerprint, v.cause, v.sample, v.class, v.handler, v.new, v.first, v.last, ids[v.at]
    FROM (SELECT unnest(group_fingerprint) AS fingerprint, unnest(group_cause) AS cause, unnest(group_sample) AS sample,
        unnest(group_class) AS class, unnest(group_handler) AS handler, unnest(group_new) AS new, unnest(group_first) AS first,
        unnest(group_last) AS last, unnest(group_at) AS at) v
    WHERE v.new > 0
    ON CONFLICT (fingerprint) DO UPDATE SET pending = dlq_groups.pending + excluded.pending,
        first_seen = LEAST(dlq_groups.first_seen, excluded.first_seen), last_seen = GREATEST(dlq_groups.last_seen, excluded.last_seen),
        last_entry_id = GREATEST(dlq_groups.last_entry_id, excluded.last_entry_id);
    INSERT INTO dlq_counts (event_type, topic, pending)
    SELECT v.type, v.topic, v.new
    FROM (SELECT unnest(count_type) AS type, unnest(count_topic) AS topic, unnest(count_new) AS new) v WHERE v.new > 0
    ON CONFLICT (event_type, topic) DO UPDATE SET pending = dlq_counts.pending + excluded.pending;
    INSERT INTO dlq_hours (hour, fingerprint, entries)
    SELECT v.at, v.fingerprint, v.new
    FROM (SELECT unnest(hour_at) AS at, unnest(hour_fingerprint) AS fingerprint, unnest(hour_new) AS new) v WHERE v.new > 0
    ON CONFLICT (hour, fingerprint) DO UPDATE SET entries = dlq_hours.entries + excluded.entries;
    RETURN ids;
END
$$;

-- One letter, with half the work. The result is its id, or NULL when its key exists.
CREATE FUNCTION dlq_put_letter(
    v_dedup_key BYTEA, v_event_id TEXT, v_event_type TEXT, v_source_table TEXT, v_source_id TEXT, v_correlation_id TEXT,
    v_broker TEXT, v_topic TEXT, v_consumer TEXT, v_handler TEXT, v_exchange TEXT, v_routing_key BYTEA, v_message_key BYTEA,
    v_kafka_partition INTEGER, v_kafka_offset BIGINT, v_position TEXT, v_broker_time TIMESTAMPTZ, v_reason TEXT,
    v_error_message TEXT, v_error_code TEXT, v_error_class TEXT, v_rule TEXT, v_fingerprint TEXT, v_attempts INTEGER,
    v_max_retries INTEGER, v_created_at TIMESTAMPTZ, v_first_failure_at TIMESTAMPTZ, v_changed_by TEXT, v_redrive_to TEXT,
    v_message_uuid BYTEA, v_payload BYTEA, v_payload_json TEXT, v_payload_sha256 BYTEA, v_content_type TEXT, v_headers TEXT,
    v_stack_trace TEXT, v_cause TEXT, v_hour TIMESTAMPTZ
) RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    v_id BIGINT;
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true); -- the database may have switched it off
    INSERT INTO dlq_keys (dedup_key, event_id, source_id, correlation_id) VALUES (v_dedup_key, v_event_id, v_source_id, v_correlation_id)
        ON CONFLICT (dedup_key) DO NOTHING RETURNING entry_id INTO v_id;
    IF v_id IS NULL THEN
        RETURN NULL;
    END IF;
    INSERT INTO dlq_entries (id, dedup_key, event_id, event_type, source_table, source_id, correlation_id, broker, topic, consumer, handler,
        exchange, routing_key, message_key, kafka_partition, kafka_offset, position, broker_time, reason, error_message, error_code,
        error_class, rule, fingerprint, attempts, max_retries, created_at, first_failure_at, died_at, last_seen_at, changed_at, changed_by,
        payload_size, redrive_to)
    VALUES (v_id, v_dedup_key, v_event_id, v_event_type, v_source_table, v_source_id, v_correlation_id, v_broker, v_topic, v_consumer,
        v_handler, v_exchange, v_routing_key, v_message_key, v_kafka_partition, v_kafka_offset, v_position, v_broker_time, v_reason,
        v_error_message, v_error_code, v_error_class, v_rule, v_fingerprint, v_attempts, v_max_retries, v_created_at,
        v_first_failure_at, v_created_at, v_created_at, v_created_at, v_changed_by, octet_length(v_payload), v_redrive_to);
    INSERT INTO dlq_bodies (entry_id, revision, message_uuid, payload, payload_json, payload_sha256, content_type, headers, stack_trace)
    VALUES (v_id, 0, v_message_uuid, v_payload, v_payload_json::jsonb, v_payload_sha256, v_content_type, v_headers, v_stack_trace);
    INSERT INTO dlq_groups (fingerprint, cause, sample, error_class, handler, pending, first_seen, last_seen, last_entry_id)
    VALUES (v_fingerprint, v_cause, v_error_message, coalesce(v_error_class, ''), v_handler, 1, v_created_at, v_created_at, v_id)
    ON CONFLICT (fingerprint) DO UPDATE SET pending = dlq_groups.pending + 1,
        first_seen = LEAST(dlq_groups.first_seen, excluded.first_seen), last_seen = GREATEST(dlq_groups.last_seen, excluded.last_seen),
        last_entry_id = GREATEST(dlq_groups.last_entry_id, excluded.last_entry_id);
    INSERT INTO dlq_counts (event_type, topic, pending) VALUES (v_event_type, v_topic, 1)
    ON CONFLICT (event_type, topic) DO UPDATE SET pending = dlq_counts.pending + 1;
    INSERT INTO dlq_hours (hour, fingerprint, entries) VALUES (v_hour, v_fingerprint, 1)
    ON CONFLICT (hour, fingerprint) DO UPDATE SET entries = dlq_hours.entries + 1;
    RETURN v_id;
END
$$;

-- The statements of programs and people that used their own table dlq_events work on the view: UPDATE resolves, discards, restores
-- and edits, DELETE purges. The store itself writes the tables. The functions run with the rights of their owner, so that GRANT UPDATE,
-- DELETE ON dlq_events is enough. A statement and a concurrent change are isolated as on a table: a row that another transaction has
-- changed in the meantime is skipped, and is not in the count of rows.

-- Records the change of the statistics in dlq_uncounted, as other transactions of the application do.
CREATE FUNCTION dlq_count_later(
    v_id BIGINT, v_fingerprint TEXT, v_type TEXT, v_topic TEXT, v_created TIMESTAMPTZ, v_died TIMESTAMPTZ,
    was TEXT, was_resolved TIMESTAMPTZ, becomes TEXT, resolved TIMESTAMPTZ -- becomes is NULL for a deleted entry
) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    utc    CONSTANT TEXT := 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"';
    counts JSONB := '{}';
    hours  JSONB := '[]';
    took   BIGINT := 0;
BEGIN
    IF was IS DISTINCT FROM becomes THEN
        counts := jsonb_build_object(initcap(was), -1);
        IF becomes IS NOT NULL THEN
            counts := counts || jsonb_build_object(initcap(becomes), 1);
        END IF;
    END IF;
    IF was = 'RESOLVED' THEN
        took := took - (extract(epoch FROM was_resolved - v_created) * 1000000)::BIGINT / 1000;
    END IF;
    IF becomes = 'RESOLVED' THEN
        took := took + (extract(epoch FROM resolved - v_created) * 1000000)::BIGINT / 1000;
    END IF;
    IF becomes IS NULL THEN
        hours := hours || jsonb_build_object('entries', -1, 'fingerprint', v_fingerprint,
            'hour', to_char(date_trunc('hour', v_created AT TIME ZONE 'UTC'), utc));
    END IF;
    IF was_resolved IS NOT NULL THEN
        hours := hours || jsonb_build_object('closed', -1, 'fingerprint', v_fingerprint,
            'hour', to_char(date_trunc('hour', was_resolved AT TIME ZONE 'UTC'), utc));
    END IF;
    IF resolved IS NOT NULL THEN
        hours := hours || jsonb_build_object('closed', 1, 'fingerprint', v_fingerprint,
            'hour', to_char(date_trunc('hour', resolved AT TIME ZONE 'UTC'), utc));
    END IF;
    INSERT INTO dlq_uncounted (deltas) SELECT jsonb_build_object(
        'groups', jsonb_build_array(jsonb_build_object('fingerprint', v_fingerprint, 'cause', coalesce(max(g.cause), ''),
            'sample', coalesce(max(g.sample), ''), 'error_class', coalesce(max(g.error_class), ''), 'handler', coalesce(max(g.handler), ''),
            'last_entry', v_id, 'first', to_char(v_died AT TIME ZONE 'UTC', utc), 'last', to_char(v_died AT TIME ZONE 'UTC', utc),
            'counts', counts)),
        'counts', jsonb_build_array(jsonb_build_object('event_type', v_type, 'topic', v_topic, 'counts', counts, 'resolution_ms', took)),
        'hours', hours)
    FROM dlq_groups g WHERE g.fingerprint = v_fingerprint;
END
$$;

CREATE FUNCTION dlq_events_update() RETURNS TRIGGER LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    e        RECORD; -- the entry, which is locked
    unlike   RECORD;
    revised  BOOLEAN := NEW.event_payload IS DISTINCT FROM OLD.event_payload;
    closes   BOOLEAN := NEW.status IN ('RESOLVED', 'DISCARDED');
    actor    TEXT := session_user;
    note     TEXT := 'UPDATE of dlq_events by the database user ' || session_user;
    last     INTEGER;
    names    TEXT;
BEGIN
    IF NEW IS NOT DISTINCT FROM OLD THEN
        RETURN NEW;
    END IF;
    unlike := OLD;
    unlike.status := NEW.status; unlike.resolved_at := NEW.resolved_at; unlike.resolved_by := NEW.resolved_by;
    unlike.retry_count := NEW.retry_count; unlike.max_retries := NEW.max_retries; unlike.last_retry_at := NEW.last_retry_at;
    unlike.event_payload := NEW.event_payload;
    IF unlike IS DISTINCT FROM NEW THEN
        SELECT string_agg(n.key, ', ') INTO names FROM jsonb_each(to_jsonb(NEW)) n JOIN jsonb_each(to_jsonb(unlike)) o ON o.key = n.key
            WHERE n.value IS DISTINCT FROM o.value;
        RAISE EXCEPTION 'dlq_events: % of entry % cannot be changed', names, OLD.id USING ERRCODE = 'feature_not_supported',
            HINT = 'What may be changed is status, resolved_at, resolved_by, event_payload, retry_count, max_retries and last_retry_at.';
    END IF;
    SELECT * INTO e FROM dlq_entries WHERE id = OLD.id FOR UPDATE;
    IF NOT FOUND OR e.status <> OLD.status OR e.revision <> OLD.revision OR e.retry_count <> OLD.retry_count
        OR e.resolved_at IS DISTINCT FROM OLD.resolved_at THEN
        RETURN NULL;
    END IF;
    IF e.status = 'RETRYING' AND e.lease_until > clock_timestamp() THEN
        RAISE EXCEPTION 'dlq_events: entry % is redriven, and its outcome awaited until %', e.id, e.lease_until
            USING ERRCODE = 'object_in_use', HINT = 'Leave RETRYING out, or end the wait by redrive dlq release.';
    ELSIF NEW.status = 'RETRYING' THEN
        RAISE EXCEPTION 'dlq_events: only a redrive makes an entry RETRYING' USING ERRCODE = 'check_violation';
    ELSIF NOT closes AND NEW.status = e.status AND (NEW.resolved_at IS NOT NULL OR NEW.resolved_by IS NOT NULL) THEN
        RAISE EXCEPTION 'dlq_events: entry % is %, which has no resolved_at and no resolved_by', e.id, e.status
            USING ERRCODE = 'check_violation', HINT = 'Set the status with them.';
    ELSIF revised AND (NEW.event_payload IS NULL OR e.status NOT IN ('PENDING', 'PARKED')) THEN
        RAISE EXCEPTION 'dlq_events: the payload of entry %, which is %, cannot be changed so', e.id, e.status
            USING ERRCODE = 'check_violation', HINT = 'PENDING and PARKED entries are corrected, by a payload that is not NULL.';
    END IF;
    IF closes THEN
        NEW.resolved_at := coalesce(NEW.resolved_at, CURRENT_TIMESTAMP);
        NEW.resolved_by := coalesce(NEW.resolved_by, session_user);
        actor := NEW.resolved_by;
    ELSE
        NEW.resolved_at := NULL;
        NEW.resolved_by := NULL;
    END IF;
    NEW.version := e.version;
    NEW.changed_at := CURRENT_TIMESTAMP;
    NEW.changed_by := actor;
    IF revised THEN
        SELECT max(revision) + 1 INTO last FROM dlq_bodies WHERE entry_id = e.id;
        NEW.payload := convert_to(NEW.event_payload::TEXT, 'UTF8');
        INSERT INTO dlq_bodies (entry_id, revision, message_uuid, payload, payload_json, payload_sha256, content_type, headers, stack_trace)
            SELECT entry_id, last, message_uuid, NEW.payload, NEW.event_payload, sha256(NEW.payload), content_type, headers, stack_trace
            FROM dlq_bodies WHERE entry_id = e.id AND revision = e.revision;
        NEW.revision := last;
        NEW.payload_size := octet_length(NEW.payload);
    END IF;
    IF revised OR NEW.status = e.status THEN
        NEW.version := NEW.version + 1;
        INSERT INTO dlq_audit (at, entry_id, actor, action, note, from_status, to_status, version, detail)
            VALUES (clock_timestamp(), e.id, left(actor, 1024), 'edit', note, e.status, e.status, NEW.version, jsonb_strip_nulls(jsonb_build_object(
                'revision', CASE WHEN revised THEN last::TEXT END,
                'retry_count', CASE WHEN NEW.retry_count <> e.retry_count THEN NEW.retry_count::TEXT END,
                'max_retries', CASE WHEN NEW.max_retries <> e.max_retries THEN NEW.max_retries::TEXT END)));
    END IF;
    IF NEW.status <> e.status THEN
        NEW.version := NEW.version + 1;
        INSERT INTO dlq_audit (at, entry_id, run_id, actor, action, note, from_status, to_status, version)
            VALUES (clock_timestamp(), e.id, CASE WHEN e.status = 'RETRYING' THEN e.run_id END, left(actor, 1024),
                CASE WHEN NEW.status = 'RESOLVED' THEN 'resolve' WHEN NEW.status = 'DISCARDED' THEN 'discard' WHEN NEW.status = 'PARKED' THEN 'park'
                    WHEN e.status = 'RETRYING' THEN 'release by hand' ELSE 'restore' END,
                note, e.status, NEW.status, NEW.version);
    END IF;
    UPDATE dlq_entries SET status = NEW.status, version = NEW.version, retry_count = NEW.retry_count, max_retries = NEW.max_retries,
        last_retry_at = NEW.last_retry_at, resolved_at = NEW.resolved_at, resolved_by = NEW.resolved_by, changed_at = NEW.changed_at,
        changed_by = NEW.changed_by, revision = NEW.revision, payload_size = NEW.payload_size,
        lease_until = CASE WHEN NEW.status = e.status THEN lease_until END
    WHERE id = e.id;
    IF NEW.status <> e.status OR NEW.resolved_at IS DISTINCT FROM e.resolved_at THEN
        PERFORM dlq_count_later(e.id, e.fingerprint, e.event_type, e.topic, e.created_at, e.died_at,
            e.status, e.resolved_at, NEW.status, NEW.resolved_at);
    END IF;
    RETURN NEW;
END
$$;

-- A deleted entry is archived, even if an earlier statement has already copied it.
CREATE FUNCTION dlq_events_delete() RETURNS TRIGGER LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    e     RECORD;
    names TEXT;
BEGIN
    SELECT * INTO e FROM dlq_entries WHERE id = OLD.id FOR UPDATE;
    IF NOT FOUND OR e.status <> OLD.status OR e.revision <> OLD.revision OR e.resolved_at IS DISTINCT FROM OLD.resolved_at THEN
        RETURN NULL;
    END IF;
    IF e.status = 'RETRYING' THEN
        RAISE EXCEPTION 'dlq_events: entry % is redriven, and its outcome awaited', e.id
            USING ERRCODE = 'object_in_use', HINT = 'Leave RETRYING out, or end the wait by redrive dlq release.';
    END IF;
    SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) INTO names FROM pg_attribute
        WHERE attrelid = TG_RELID AND attnum > 0 AND NOT attisdropped;
    DELETE FROM archive.dlq_events_archive WHERE id = e.id;
    EXECUTE 'INSERT INTO archive.dlq_events_archive (' || names || ', archived_at) SELECT ' || names
        || ', CURRENT_TIMESTAMP FROM dlq_events WHERE id = $1' USING e.id;
    INSERT INTO archive.dlq_bodies_archive (entry_id, revision, message_uuid, payload, payload_json, payload_sha256, content_type, headers, stack_trace)
        SELECT entry_id, revision, message_uuid, payload, payload_json, payload_sha256, content_type, headers, stack_trace
        FROM dlq_bodies WHERE entry_id = e.id AND revision <> e.revision;
    DELETE FROM dlq_bodies WHERE entry_id = e.id;
    DELETE FROM dlq_entries WHERE id = e.id;
    DELETE FROM dlq_keys WHERE entry_id = e.id;
    INSERT INTO dlq_audit (at, entry_id, run_id, actor, action, note, from_status, to_status, version, detail)
        VALUES (clock_timestamp(), e.id, e.run_id, session_user, 'purge', 'DELETE from dlq_events by the database user ' || session_user,
            e.status, '', e.version, jsonb_build_object('event_id', e.event_id));
    PERFORM dlq_count_later(e.id, e.fingerprint, e.event_type, e.topic, e.created_at, e.died_at, e.status, e.resolved_at, NULL, NULL);
    RETURN OLD;
END
$$;

CREATE TRIGGER dlq_events_update INSTEAD OF UPDATE ON dlq_events FOR EACH ROW EXECUTE FUNCTION dlq_events_update();
CREATE TRIGGER dlq_events_delete INSTEAD OF DELETE ON dlq_events FOR EACH ROW EXECUTE FUNCTION dlq_events_delete();

-- The functions use this store's tables, whatever the caller's search_path and temporary tables are.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION dlq_events_update() SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION dlq_events_delete() SET search_path = %I, pg_temp', current_schema());
END
$$;
-- +goose StatementEnd
