-- +goose Up

-- MySQL commits after each CREATE. An interrupted migration starts again, so each statement can be repeated.

-- What is filtered, sorted and changed: one row for each dead letter. The message is in dlq_bodies, so that this table stays
-- narrow. Ids are never reused, because redriven messages carry them. Text compares by its bytes (utf8mb4_bin).
CREATE TABLE IF NOT EXISTS dlq_entries (
    id               BIGINT        NOT NULL AUTO_INCREMENT PRIMARY KEY,
    dedup_key        BINARY(32)    NOT NULL,
    put_token        BIGINT        NOT NULL DEFAULT 0, -- of the call that stored the row: tells its new rows from those that existed
    event_id         VARCHAR(1024) NOT NULL,
    event_type       VARCHAR(1024) NOT NULL,
    source_table     VARCHAR(1024),
    source_id        VARCHAR(1024),
    correlation_id   VARCHAR(1024),
    broker           VARCHAR(1024) NOT NULL,
    topic            VARCHAR(1024) NOT NULL,
    consumer         VARCHAR(1024) NOT NULL,
    handler          VARCHAR(1024) NOT NULL,
    exchange         TEXT,
    routing_key      BLOB,
    message_key      LONGBLOB,
    kafka_partition  INT,
    kafka_offset     BIGINT,
    position         TEXT,
    broker_time      DATETIME(6),
    reason           TEXT          NOT NULL,
    error_message    TEXT          NOT NULL,
    error_code       TEXT,
    error_class      TEXT,
    rule             TEXT,
    fingerprint      VARCHAR(64)   NOT NULL,
    attempts         INT           NOT NULL CHECK (attempts >= 0),
    status           VARCHAR(20)   NOT NULL DEFAULT 'PENDING'
        CHECK (status IN ('PENDING', 'RETRYING', 'RESOLVED', 'DISCARDED', 'PARKED')),
    version          BIGINT        NOT NULL DEFAULT 1,
    retry_count      INT           NOT NULL DEFAULT 0,
    max_retries      INT           NOT NULL DEFAULT 3,
    death_redrive    INT           NOT NULL DEFAULT 0,
    seen_count       INT           NOT NULL DEFAULT 1,
    lease_until      DATETIME(6),
    run_id           VARCHAR(64),
    created_at       DATETIME(6)   NOT NULL,
    first_failure_at DATETIME(6)   NOT NULL,
    died_at          DATETIME(6)   NOT NULL,
    last_seen_at     DATETIME(6)   NOT NULL,
    last_retry_at    DATETIME(6),
    succeeded_at     DATETIME(6),
    resolved_at      DATETIME(6),
    resolved_by      TEXT,
    changed_at       DATETIME(6)   NOT NULL,
    changed_by       TEXT          NOT NULL,
    revision         INT           NOT NULL DEFAULT 0,
    payload_size     BIGINT        NOT NULL,
    redrive_to       TEXT, -- where its broker publishes a redrive; NULL if topic and consumer are the whole address
    UNIQUE INDEX idx_dlq_dedup_key (dedup_key),
    -- Under the names that others have used. InnoDB ends each in the id, which makes it the order of a listing. Only the first
    -- 191 characters of a name are indexed; the rest is compared.
    INDEX idx_dlq_status         (status, created_at),
    INDEX idx_dlq_created_at     (created_at),
    INDEX idx_dlq_source_id      (source_id(191)),
    INDEX idx_dlq_event_type     (event_type(191), status, created_at),
    INDEX idx_dlq_event_id       (event_id(191)),
    INDEX idx_dlq_correlation_id (correlation_id(191)),
    INDEX idx_dlq_fingerprint    (fingerprint, status, created_at),
    INDEX idx_dlq_topic          (topic(191), status, created_at),
    INDEX idx_dlq_run_id         (run_id, created_at),
    INDEX idx_dlq_resolved_at    (resolved_at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- The messages, byte for byte. Revision 0 is the original; a message that was changed adds one. A payload that is too long for a
-- statement (max_allowed_packet) continues in dlq_parts.
CREATE TABLE IF NOT EXISTS dlq_bodies (
    entry_id       BIGINT     NOT NULL,
    revision       INT        NOT NULL,
    message_uuid   BLOB       NOT NULL,
    payload        LONGBLOB   NOT NULL,
    payload_json   TINYINT    NOT NULL, -- 1 if the payload is JSON that the database's functions can read
    payload_sha256 BINARY(32) NOT NULL,
    content_type   TEXT,
    headers        LONGTEXT   NOT NULL, -- {"text": {...}, "binary": [[base64, base64], ...]}: lossless
    stack_trace    TEXT,
    PRIMARY KEY (entry_id, revision)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
CREATE TABLE IF NOT EXISTS dlq_parts (
    entry_id BIGINT   NOT NULL,
    revision INT      NOT NULL,
    part     INT      NOT NULL, -- from 1; dlq_bodies.payload has the beginning
    payload  LONGBLOB NOT NULL,
    PRIMARY KEY (entry_id, revision, part)
) ENGINE = InnoDB;

-- Statistics: updated in the transaction of every change, and read instead of the entries.
CREATE TABLE IF NOT EXISTS dlq_groups (
    fingerprint   VARCHAR(64)   NOT NULL PRIMARY KEY,
    cause         TEXT          NOT NULL,
    sample        TEXT          NOT NULL,
    error_class   VARCHAR(1024) NOT NULL,
    handler       VARCHAR(1024) NOT NULL,
    pending       BIGINT        NOT NULL DEFAULT 0,
    retrying      BIGINT        NOT NULL DEFAULT 0,
    resolved      BIGINT        NOT NULL DEFAULT 0,
    discarded     BIGINT        NOT NULL DEFAULT 0,
    first_seen    DATETIME(6)   NOT NULL,
    last_seen     DATETIME(6)   NOT NULL,
    last_entry_id BIGINT        NOT NULL,
    parked        BIGINT        NOT NULL DEFAULT 0
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
-- The two names are too long for a key, so their digest is the key. The id is for servers that require a primary key in every table,
-- which on MariaDB cannot be a computed column.
CREATE TABLE IF NOT EXISTS dlq_counts (
    id            BIGINT        NOT NULL AUTO_INCREMENT PRIMARY KEY,
    event_type    VARCHAR(1024) NOT NULL,
    topic         VARCHAR(1024) NOT NULL,
    pending       BIGINT        NOT NULL DEFAULT 0,
    retrying      BIGINT        NOT NULL DEFAULT 0,
    resolved      BIGINT        NOT NULL DEFAULT 0,
    discarded     BIGINT        NOT NULL DEFAULT 0,
    resolution_ms BIGINT        NOT NULL DEFAULT 0, -- sum of resolved_at - created_at of the resolved entries
    names_digest  CHAR(64) CHARACTER SET ascii AS (SHA2(CONCAT(LENGTH(event_type), ' ', event_type, topic), 256)) STORED UNIQUE,
    parked        BIGINT        NOT NULL DEFAULT 0
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
CREATE TABLE IF NOT EXISTS dlq_hours (
    hour        DATETIME(6) NOT NULL,
    fingerprint VARCHAR(64) NOT NULL,
    entries     BIGINT      NOT NULL DEFAULT 0,
    closed      BIGINT      NOT NULL DEFAULT 0,
    died_again  BIGINT      NOT NULL DEFAULT 0,
    PRIMARY KEY (hour, fingerprint),
    INDEX idx_dlq_hours_fingerprint (fingerprint, hour)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Changes of the statistics by transactions of the application, which would otherwise lock the statistics' rows until they end.
CREATE TABLE IF NOT EXISTS dlq_uncounted (
    id     BIGINT   NOT NULL AUTO_INCREMENT PRIMARY KEY,
    deltas LONGTEXT NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Who did what, when and why. Append-only, by triggers that the store creates if the server allows it.
CREATE TABLE IF NOT EXISTS dlq_audit (
    id          BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at          DATETIME(6)  NOT NULL,
    entry_id    BIGINT       NOT NULL,
    run_id      VARCHAR(64),
    actor       TEXT         NOT NULL,
    action      VARCHAR(64)  NOT NULL,
    note        LONGTEXT     NOT NULL,
    from_status VARCHAR(20)  NOT NULL,
    to_status   VARCHAR(20)  NOT NULL,
    version     BIGINT       NOT NULL,
    detail      LONGTEXT,
    INDEX idx_dlq_audit_entry_id (entry_id, at),
    INDEX idx_dlq_audit_at       (at),
    INDEX idx_dlq_audit_run_id   (run_id, at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- The table of other systems as a view: their columns, in their order, then ours. event_payload is NULL for a
-- payload that is not JSON; payload has the bytes, all of them unless there are more in dlq_parts. The left join is on a unique key: a
-- query that uses no column of the body does not read it.
CREATE OR REPLACE VIEW dlq_events AS
SELECT e.id, e.event_id, e.event_type, e.source_table, e.source_id,
       CASE WHEN b.payload_json = 1 THEN CONVERT(b.payload USING utf8mb4) END AS event_payload,
       e.error_message, b.stack_trace, e.retry_count, e.max_retries, e.status, e.created_at, e.last_retry_at, e.resolved_at,
       e.resolved_by, e.kafka_offset, e.kafka_partition, e.topic AS kafka_topic, e.correlation_id,
       e.correlation_id AS correlation, b.payload, b.payload_sha256, e.payload_size, b.content_type, b.headers, b.message_uuid,
       e.broker, e.topic, e.consumer, e.handler, e.exchange, e.routing_key, e.message_key, e.position, e.broker_time, e.reason,
       e.error_class, e.error_code, e.rule, e.fingerprint, e.attempts, e.version, e.seen_count, e.death_redrive, e.lease_until,
       e.run_id, e.first_failure_at, e.died_at, e.last_seen_at, e.succeeded_at, e.changed_at, e.changed_by, e.revision, e.dedup_key,
       e.redrive_to
FROM dlq_entries e
LEFT JOIN dlq_bodies b ON b.entry_id = e.id AND b.revision = e.revision;

-- The archive: the same columns, as they were when the entry was purged. A schema is a database here, so it is in this one.
CREATE TABLE IF NOT EXISTS dlq_events_archive (
    id BIGINT NOT NULL PRIMARY KEY, event_id TEXT, event_type TEXT, source_table TEXT, source_id TEXT, event_payload LONGTEXT,
    error_message TEXT, stack_trace TEXT, retry_count INT, max_retries INT, status VARCHAR(20), created_at DATETIME(6),
    last_retry_at DATETIME(6), resolved_at DATETIME(6), resolved_by TEXT, kafka_offset BIGINT, kafka_partition INT, kafka_topic TEXT,
    correlation_id TEXT, correlation TEXT, payload LONGBLOB, payload_sha256 BINARY(32), payload_size BIGINT, content_type TEXT, headers LONGTEXT,
    message_uuid BLOB, broker TEXT, topic TEXT, consumer TEXT, handler TEXT, exchange TEXT, routing_key BLOB, message_key LONGBLOB,
    position TEXT, broker_time DATETIME(6), reason TEXT, error_class TEXT, error_code TEXT, rule TEXT, fingerprint VARCHAR(64),
    attempts INT, version BIGINT, seen_count INT, death_redrive INT, lease_until DATETIME(6), run_id VARCHAR(64),
    first_failure_at DATETIME(6), died_at DATETIME(6), last_seen_at DATETIME(6), succeeded_at DATETIME(6), changed_at DATETIME(6),
    changed_by TEXT, revision INT, dedup_key BINARY(32), redrive_to TEXT,
    archived_at DATETIME(6) NOT NULL,
    INDEX idx_dlq_archive_event_id (event_id(191))
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
-- The earlier revisions; the archive of entries only has the last.
CREATE TABLE IF NOT EXISTS dlq_bodies_archive (
    entry_id       BIGINT     NOT NULL,
    revision       INT        NOT NULL,
    message_uuid   BLOB       NOT NULL,
    payload        LONGBLOB   NOT NULL,
    payload_json   TINYINT    NOT NULL,
    payload_sha256 BINARY(32) NOT NULL,
    content_type   TEXT,
    headers        LONGTEXT   NOT NULL,
    stack_trace    TEXT,
    PRIMARY KEY (entry_id, revision)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Redrive runs. The document is the run as JSON; values that steps change or that are searched have columns.
CREATE TABLE IF NOT EXISTS dlq_runs (
    seq         BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    run_id      VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL UNIQUE,
    state       VARCHAR(20)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version     BIGINT       NOT NULL,
    created_at  DATETIME(6)  NOT NULL,
    created_by  TEXT         NOT NULL,
    document    LONGTEXT     NOT NULL,
    holder      VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    lease_until DATETIME(6),
    frozen_to   BIGINT NOT NULL DEFAULT 0,
    freeze_to   BIGINT NOT NULL DEFAULT 0,
    n_waiting   BIGINT NOT NULL DEFAULT 0,
    n_claimed   BIGINT NOT NULL DEFAULT 0,
    n_out       BIGINT NOT NULL DEFAULT 0,
    n_succeeded BIGINT NOT NULL DEFAULT 0,
    n_failed    BIGINT NOT NULL DEFAULT 0,
    n_lost      BIGINT NOT NULL DEFAULT 0,
    n_skipped   BIGINT NOT NULL DEFAULT 0,
    INDEX idx_dlq_runs_created_at (created_at),
    INDEX idx_dlq_runs_state (state, created_at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- The frozen sets. The key is the order in which a run works through them.
CREATE TABLE IF NOT EXISTS dlq_run_items (
    run_seq       BIGINT      NOT NULL,
    entry_id      BIGINT      NOT NULL,
    state         VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version       BIGINT      NOT NULL,
    revision      BIGINT      NOT NULL,
    redrive       BIGINT      NOT NULL DEFAULT 0,
    claimed_until DATETIME(6),
    settled_at    DATETIME(6),
    detail        TEXT,
    PRIMARY KEY (run_seq, entry_id),
    INDEX idx_dlq_run_items_state (run_seq, state, entry_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- What people sent without approval, for the limit of what a person may send alone. A run that has not ended is open: it
-- counts, however old it is. The row whose key begins with "person" is the lock of that person's rows.
CREATE TABLE IF NOT EXISTS dlq_sends (
    send_key VARCHAR(255) NOT NULL PRIMARY KEY,
    person   VARCHAR(255) NOT NULL,
    at       DATETIME(6) NOT NULL,
    entries  BIGINT NOT NULL,
    is_open  INTEGER NOT NULL,
    INDEX idx_dlq_sends_person (person, at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Tokens of the HTTP server by their digest, and the sessions of people who logged in, by the digest of their cookie.
CREATE TABLE IF NOT EXISTS dlq_tokens (
    name       VARCHAR(255) NOT NULL PRIMARY KEY,
    role       VARCHAR(20) NOT NULL,
    digest     VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL UNIQUE,
    created_at DATETIME(6) NOT NULL,
    created_by TEXT NOT NULL,
    expires_at DATETIME(6),
    used_at    DATETIME(6),
    revoked_at DATETIME(6),
    revoked_by TEXT
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
CREATE TABLE IF NOT EXISTS dlq_sessions (
    digest     VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    name       VARCHAR(255) NOT NULL,
    role       VARCHAR(20) NOT NULL,
    created_at DATETIME(6) NOT NULL,
    expires_at DATETIME(6) NOT NULL,
    used_at    DATETIME(6) NOT NULL,
    INDEX idx_dlq_sessions_expires_at (expires_at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- The last report of each process of a service. The row without a process has the pause that applies to all of them.
CREATE TABLE IF NOT EXISTS dlq_services (
    service   VARCHAR(255) NOT NULL,
    process   VARCHAR(255) NOT NULL,
    at        DATETIME(6) NOT NULL,
    paused    SMALLINT NOT NULL DEFAULT 0,
    paused_by VARCHAR(255) NOT NULL,
    report    LONGTEXT NOT NULL,
    PRIMARY KEY (service, process)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- What receivers were notified of. The row without a receiver names the process that notifies, and until when; a row without an id has
-- the time of its receiver's first notification.
CREATE TABLE IF NOT EXISTS dlq_notices (
    receiver VARCHAR(255) NOT NULL,
    id       VARCHAR(255) NOT NULL,
    at       DATETIME(6) NOT NULL,
    holder   VARCHAR(255) NOT NULL,
    PRIMARY KEY (receiver, id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
INSERT INTO dlq_notices (receiver, id, at, holder) VALUES ('', '', '2000-01-01 00:00:00', '')
    ON DUPLICATE KEY UPDATE holder = holder;

-- The muted causes.
CREATE TABLE IF NOT EXISTS dlq_mutes (
    fingerprint VARCHAR(255) NOT NULL PRIMARY KEY,
    muted_at    DATETIME(6) NOT NULL,
    until       DATETIME(6),
    muted_by    VARCHAR(255) NOT NULL,
    note        TEXT NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
