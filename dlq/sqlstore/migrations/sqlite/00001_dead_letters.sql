-- +goose Up
-- +goose StatementBegin
-- What is filtered, sorted and changed: one row for each dead letter. The message is in dlq_bodies, so that this table stays
-- narrow. AUTOINCREMENT: the ids of purged entries are never reused, because redriven messages carry them.
CREATE TABLE dlq_entries (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    dedup_key        BLOB    NOT NULL UNIQUE,
    event_id         TEXT    NOT NULL,
    event_type       TEXT    NOT NULL,
    source_table     TEXT,
    source_id        TEXT,
    correlation_id   TEXT,
    broker           TEXT    NOT NULL,
    topic            TEXT    NOT NULL,
    consumer         TEXT    NOT NULL,
    handler          TEXT    NOT NULL,
    exchange         TEXT,
    routing_key      BLOB,
    message_key      BLOB,
    kafka_partition  INTEGER,
    kafka_offset     INTEGER,
    position         TEXT,
    broker_time      TEXT,
    reason           TEXT    NOT NULL,
    error_message    TEXT    NOT NULL,
    error_code       TEXT,
    error_class      TEXT,
    rule             TEXT,
    fingerprint      TEXT    NOT NULL,
    attempts         INTEGER NOT NULL CHECK (attempts >= 0),
    status           TEXT    NOT NULL DEFAULT 'PENDING'
        CHECK (status IN ('PENDING', 'RETRYING', 'RESOLVED', 'DISCARDED', 'PARKED')),
    version          INTEGER NOT NULL DEFAULT 1,
    retry_count      INTEGER NOT NULL DEFAULT 0,
    max_retries      INTEGER NOT NULL DEFAULT 3,
    death_redrive    INTEGER NOT NULL DEFAULT 0,
    seen_count       INTEGER NOT NULL DEFAULT 1,
    lease_until      TEXT,
    run_id           TEXT,
    created_at       TEXT    NOT NULL,
    first_failure_at TEXT    NOT NULL,
    died_at          TEXT    NOT NULL,
    last_seen_at     TEXT    NOT NULL,
    last_retry_at    TEXT,
    succeeded_at     TEXT,
    resolved_at      TEXT,
    resolved_by      TEXT,
    changed_at       TEXT    NOT NULL,
    changed_by       TEXT    NOT NULL,
    revision         INTEGER NOT NULL DEFAULT 0,
    payload_size     INTEGER NOT NULL,
    redrive_to       TEXT -- where its broker publishes a redrive; NULL if topic and consumer are the whole address
);
-- Under the names that others have used; each ends in the order of a listing, so that a page is a range of the index.
CREATE INDEX idx_dlq_status         ON dlq_entries (status, created_at);
CREATE INDEX idx_dlq_created_at     ON dlq_entries (created_at);
CREATE INDEX idx_dlq_source_id      ON dlq_entries (source_id, created_at) WHERE source_id IS NOT NULL;
CREATE INDEX idx_dlq_event_type     ON dlq_entries (event_type, status, created_at);
CREATE INDEX idx_dlq_event_id       ON dlq_entries (event_id);
CREATE INDEX idx_dlq_correlation_id ON dlq_entries (correlation_id, created_at) WHERE correlation_id IS NOT NULL;
CREATE INDEX idx_dlq_fingerprint    ON dlq_entries (fingerprint, status, created_at);
CREATE INDEX idx_dlq_topic          ON dlq_entries (topic, status, created_at);
CREATE INDEX idx_dlq_run_id         ON dlq_entries (run_id, created_at) WHERE run_id IS NOT NULL;
CREATE INDEX idx_dlq_resolved_at    ON dlq_entries (resolved_at) WHERE resolved_at IS NOT NULL;

-- The messages, byte for byte. Revision 0 is the original; a message that was changed adds one.
CREATE TABLE dlq_bodies (
    entry_id       INTEGER NOT NULL,
    revision       INTEGER NOT NULL,
    message_uuid   BLOB    NOT NULL,
    payload        BLOB    NOT NULL,
    payload_json   INTEGER NOT NULL, -- 1 if the payload is JSON that the database's functions can read
    payload_sha256 BLOB    NOT NULL,
    content_type   TEXT,
    headers        TEXT    NOT NULL, -- {"text": {...}, "binary": [[base64, base64], ...]}: lossless
    stack_trace    TEXT,
    PRIMARY KEY (entry_id, revision)
);

-- Statistics: updated in the transaction of every change, and read instead of the entries.
CREATE TABLE dlq_groups (
    fingerprint   TEXT    PRIMARY KEY,
    cause         TEXT    NOT NULL,
    sample        TEXT    NOT NULL,
    error_class   TEXT    NOT NULL,
    handler       TEXT    NOT NULL,
    pending       INTEGER NOT NULL DEFAULT 0,
    retrying      INTEGER NOT NULL DEFAULT 0,
    resolved      INTEGER NOT NULL DEFAULT 0,
    discarded     INTEGER NOT NULL DEFAULT 0,
    first_seen    TEXT    NOT NULL,
    last_seen     TEXT    NOT NULL,
    last_entry_id INTEGER NOT NULL,
    parked        INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX idx_dlq_groups_pending ON dlq_groups (pending);

CREATE TABLE dlq_counts (
    event_type    TEXT    NOT NULL,
    topic         TEXT    NOT NULL,
    pending       INTEGER NOT NULL DEFAULT 0,
    retrying      INTEGER NOT NULL DEFAULT 0,
    resolved      INTEGER NOT NULL DEFAULT 0,
    discarded     INTEGER NOT NULL DEFAULT 0,
    resolution_ms INTEGER NOT NULL DEFAULT 0, -- sum of resolved_at - created_at of the resolved entries
    parked        INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (event_type, topic)
) WITHOUT ROWID;

CREATE TABLE dlq_hours (
    hour        TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    entries     INTEGER NOT NULL DEFAULT 0,
    closed      INTEGER NOT NULL DEFAULT 0,
    died_again  INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (hour, fingerprint)
) WITHOUT ROWID;
CREATE INDEX idx_dlq_hours_fingerprint ON dlq_hours (fingerprint, hour);

-- Changes of the statistics by transactions of the application, which would otherwise lock the statistics' rows until they end.
CREATE TABLE dlq_uncounted (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    deltas TEXT    NOT NULL
);

-- Who did what, when and why. Append-only.
CREATE TABLE dlq_audit (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    at          TEXT    NOT NULL,
    entry_id    INTEGER NOT NULL,
    run_id      TEXT,
    actor       TEXT    NOT NULL,
    action      TEXT    NOT NULL,
    note        TEXT    NOT NULL,
    from_status TEXT    NOT NULL,
    to_status   TEXT    NOT NULL,
    version     INTEGER NOT NULL,
    detail      TEXT
);
CREATE INDEX idx_dlq_audit_entry_id ON dlq_audit (entry_id, at);
CREATE INDEX idx_dlq_audit_at       ON dlq_audit (at);
CREATE INDEX idx_dlq_audit_run_id   ON dlq_audit (run_id, at) WHERE run_id IS NOT NULL;
CREATE TRIGGER dlq_audit_no_update BEFORE UPDATE ON dlq_audit
BEGIN
    SELECT RAISE(ABORT, 'dlq_audit is append-only');
END;
CREATE TRIGGER dlq_audit_no_delete BEFORE DELETE ON dlq_audit
BEGIN
    SELECT RAISE(ABORT, 'dlq_audit is append-only');
END;

-- The table of other systems as a view: their columns, in their order, then ours. event_payload is NULL for a
-- payload that is not JSON; payload always has the bytes. The left join is on a unique key: a query that uses no column of the
-- body does not read it.
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

-- The archive: the same columns, as they were when the entry was purged. (On a server it is in a separate schema; a SQLite file has none,
-- and two files are not one transaction in WAL mode.)
CREATE TABLE dlq_events_archive (
    id INTEGER PRIMARY KEY, event_id TEXT, event_type TEXT, source_table TEXT, source_id TEXT, event_payload TEXT,
    error_message TEXT, stack_trace TEXT, retry_count INTEGER, max_retries INTEGER, status TEXT, created_at TEXT,
    last_retry_at TEXT, resolved_at TEXT, resolved_by TEXT, kafka_offset INTEGER, kafka_partition INTEGER, kafka_topic TEXT,
    correlation_id TEXT, correlation TEXT, payload BLOB, payload_sha256 BLOB, payload_size INTEGER, content_type TEXT, headers TEXT,
    message_uuid BLOB, broker TEXT, topic TEXT, consumer TEXT, handler TEXT, exchange TEXT, routing_key BLOB, message_key BLOB,
    position TEXT, broker_time TEXT, reason TEXT, error_class TEXT, error_code TEXT, rule TEXT, fingerprint TEXT,
    attempts INTEGER, version INTEGER, seen_count INTEGER, death_redrive INTEGER, lease_until TEXT, run_id TEXT,
    first_failure_at TEXT, died_at TEXT, last_seen_at TEXT, succeeded_at TEXT, changed_at TEXT, changed_by TEXT,
    revision INTEGER, dedup_key BLOB, redrive_to TEXT,
    archived_at TEXT NOT NULL
);
CREATE INDEX idx_dlq_archive_event_id ON dlq_events_archive (event_id);
-- The earlier revisions; the archive of entries only has the last.
CREATE TABLE dlq_bodies_archive (
    entry_id       INTEGER NOT NULL,
    revision       INTEGER NOT NULL,
    message_uuid   BLOB    NOT NULL,
    payload        BLOB    NOT NULL,
    payload_json   INTEGER NOT NULL,
    payload_sha256 BLOB    NOT NULL,
    content_type   TEXT,
    headers        TEXT    NOT NULL,
    stack_trace    TEXT,
    PRIMARY KEY (entry_id, revision)
);

-- Redrive runs. The document is the run as JSON; values that steps change or that are searched have columns.
CREATE TABLE dlq_runs (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id      TEXT    NOT NULL UNIQUE,
    state       TEXT    NOT NULL,
    version     INTEGER NOT NULL,
    created_at  TEXT    NOT NULL,
    created_by  TEXT    NOT NULL,
    document    TEXT    NOT NULL,
    holder      TEXT    NOT NULL DEFAULT '',
    lease_until TEXT,
    frozen_to   INTEGER NOT NULL DEFAULT 0,
    freeze_to   INTEGER NOT NULL DEFAULT 0,
    n_waiting   INTEGER NOT NULL DEFAULT 0,
    n_claimed   INTEGER NOT NULL DEFAULT 0,
    n_out       INTEGER NOT NULL DEFAULT 0,
    n_succeeded INTEGER NOT NULL DEFAULT 0,
    n_failed    INTEGER NOT NULL DEFAULT 0,
    n_lost      INTEGER NOT NULL DEFAULT 0,
    n_skipped   INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX idx_dlq_runs_created_at ON dlq_runs (created_at);
CREATE INDEX idx_dlq_runs_state      ON dlq_runs (state, created_at);

-- The frozen sets. Without ROWID: the key is the order in which a run goes through them.
CREATE TABLE dlq_run_items (
    run_seq       INTEGER NOT NULL,
    entry_id      INTEGER NOT NULL,
    state         TEXT    NOT NULL,
    version       INTEGER NOT NULL,
    revision      INTEGER NOT NULL,
    redrive       INTEGER NOT NULL DEFAULT 0,
    claimed_until TEXT,
    settled_at    TEXT,
    detail        TEXT,
    PRIMARY KEY (run_seq, entry_id)
) WITHOUT ROWID;
CREATE INDEX idx_dlq_run_items_state ON dlq_run_items (run_seq, state, entry_id);

-- What people sent without approval, for the limit of what a person may send alone. A run that has not ended is open: it
-- counts, however old it is. The row whose key begins with "person" is the lock of that person's rows.
CREATE TABLE dlq_sends (
    send_key TEXT    NOT NULL PRIMARY KEY,
    person   TEXT    NOT NULL,
    at       TEXT    NOT NULL,
    entries  INTEGER NOT NULL,
    is_open  INTEGER NOT NULL
);
CREATE INDEX idx_dlq_sends_person ON dlq_sends (person, at);

-- Tokens of the HTTP server by their digest, and the sessions of people who logged in, by the digest of their cookie.
CREATE TABLE dlq_tokens (
    name       TEXT    NOT NULL PRIMARY KEY,
    role       TEXT    NOT NULL,
    digest     TEXT    NOT NULL UNIQUE,
    created_at TEXT    NOT NULL,
    created_by TEXT    NOT NULL,
    expires_at TEXT,
    used_at    TEXT,
    revoked_at TEXT,
    revoked_by TEXT
);
CREATE TABLE dlq_sessions (
    digest     TEXT    NOT NULL PRIMARY KEY,
    name       TEXT    NOT NULL,
    role       TEXT    NOT NULL,
    created_at TEXT    NOT NULL,
    expires_at TEXT    NOT NULL,
    used_at    TEXT    NOT NULL
);
CREATE INDEX idx_dlq_sessions_expires_at ON dlq_sessions (expires_at);

-- The last report of each process of a service. The row without a process has the pause that applies to all of them.
CREATE TABLE dlq_services (
    service   TEXT NOT NULL,
    process   TEXT NOT NULL,
    at        TEXT NOT NULL,
    paused    INTEGER NOT NULL DEFAULT 0,
    paused_by TEXT NOT NULL,
    report    TEXT NOT NULL,
    PRIMARY KEY (service, process)
) WITHOUT ROWID;

-- What receivers were notified of. The row without a receiver names the process that notifies, and until when; a row without an id has
-- the time of its receiver's first notification.
CREATE TABLE dlq_notices (
    receiver TEXT NOT NULL,
    id       TEXT NOT NULL,
    at       TEXT NOT NULL,
    holder   TEXT NOT NULL,
    PRIMARY KEY (receiver, id)
) WITHOUT ROWID;
INSERT INTO dlq_notices (receiver, id, at, holder) VALUES ('', '', '2000-01-01 00:00:00.000000', '');

-- The muted causes.
CREATE TABLE dlq_mutes (
    fingerprint TEXT NOT NULL PRIMARY KEY,
    muted_at    TEXT NOT NULL,
    until       TEXT,
    muted_by    TEXT NOT NULL,
    note        TEXT NOT NULL
) WITHOUT ROWID;
-- +goose StatementEnd
