-- +goose Up

-- MySQL commits after every statement that makes a table. A migration that was interrupted is done again from its first statement: so each
-- does nothing where it has been done.

-- What is filtered, sorted and changed. One row a dead letter; the message itself is in dlq_bodies, so that this table stays
-- narrow. An id is never given again, because redriven messages carry ids. Text compares by its bytes (utf8mb4_bin).
CREATE TABLE IF NOT EXISTS dlq_entries (
    id               BIGINT        NOT NULL AUTO_INCREMENT PRIMARY KEY,
    dedup_key        BINARY(32)    NOT NULL,
    put_token        BIGINT        NOT NULL DEFAULT 0, -- of the call that stored it: how it knows its own rows among those that were there
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
    UNIQUE INDEX idx_dlq_dedup_key (dedup_key),
    -- C20's names. InnoDB ends each in the id, which makes it the order of a listing. What is behind the 191st character of a name is
    -- not indexed, but compared.
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

-- The messages, byte for byte. Revision 0 is what died first; a message that changed on its way adds one. A payload that is too long for a
-- statement (max_allowed_packet) continues in dlq_parts.
CREATE TABLE IF NOT EXISTS dlq_bodies (
    entry_id       BIGINT     NOT NULL,
    revision       INT        NOT NULL,
    message_uuid   BLOB       NOT NULL,
    payload        LONGBLOB   NOT NULL,
    payload_json   TINYINT    NOT NULL, -- 1 when the payload, as it is, is JSON that every JSON function here can read
    payload_sha256 BINARY(32) NOT NULL,
    content_type   TEXT,
    headers        LONGTEXT   NOT NULL, -- {"text": {...}, "binary": [[base64, base64], ...]}: lossless
    stack_trace    TEXT,
    PRIMARY KEY (entry_id, revision)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
CREATE TABLE IF NOT EXISTS dlq_parts (
    entry_id BIGINT   NOT NULL,
    revision INT      NOT NULL,
    part     INT      NOT NULL, -- from 1; what is before it is dlq_bodies.payload
    payload  LONGBLOB NOT NULL,
    PRIMARY KEY (entry_id, revision, part)
) ENGINE = InnoDB;

-- Kept statistics: changed in the transaction of every change, read instead of the entries.
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
    last_entry_id BIGINT        NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
-- Two names are longer than a key may be: their digest is the key. The id is for servers that want a primary key in every table, which on
-- MariaDB no computed column may be.
CREATE TABLE IF NOT EXISTS dlq_counts (
    id            BIGINT        NOT NULL AUTO_INCREMENT PRIMARY KEY,
    event_type    VARCHAR(1024) NOT NULL,
    topic         VARCHAR(1024) NOT NULL,
    pending       BIGINT        NOT NULL DEFAULT 0,
    retrying      BIGINT        NOT NULL DEFAULT 0,
    resolved      BIGINT        NOT NULL DEFAULT 0,
    discarded     BIGINT        NOT NULL DEFAULT 0,
    resolution_ms BIGINT        NOT NULL DEFAULT 0, -- sum over the resolved ones, from created_at to resolved_at
    names_digest  CHAR(64) CHARACTER SET ascii AS (SHA2(CONCAT(LENGTH(event_type), ' ', event_type, topic), 256)) STORED UNIQUE
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
CREATE TABLE IF NOT EXISTS dlq_hours (
    hour        DATETIME(6) NOT NULL,
    fingerprint VARCHAR(64) NOT NULL,
    entries     BIGINT      NOT NULL DEFAULT 0,
    PRIMARY KEY (hour, fingerprint)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- What transactions of the application left to be counted: the statistics' rows would stay locked as long as they are open.
CREATE TABLE IF NOT EXISTS dlq_uncounted (
    id     BIGINT   NOT NULL AUTO_INCREMENT PRIMARY KEY,
    deltas LONGTEXT NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Who did what, when and why. Only ever appended to: the store makes the triggers that see to it where the server lets it.
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

-- C19's table as queries see it: its columns under their names and in their order, then ours. event_payload is NULL for a
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
       e.run_id, e.first_failure_at, e.died_at, e.last_seen_at, e.succeeded_at, e.changed_at, e.changed_by, e.revision, e.dedup_key
FROM dlq_entries e
LEFT JOIN dlq_bodies b ON b.entry_id = e.id AND b.revision = e.revision;

-- C35's archive: the same columns, as they were when the entry was purged. (A schema is a database here: it stays in this one.)
CREATE TABLE IF NOT EXISTS dlq_events_archive (
    id BIGINT NOT NULL PRIMARY KEY, event_id TEXT, event_type TEXT, source_table TEXT, source_id TEXT, event_payload LONGTEXT,
    error_message TEXT, stack_trace TEXT, retry_count INT, max_retries INT, status VARCHAR(20), created_at DATETIME(6),
    last_retry_at DATETIME(6), resolved_at DATETIME(6), resolved_by TEXT, kafka_offset BIGINT, kafka_partition INT, kafka_topic TEXT,
    correlation_id TEXT, correlation TEXT, payload LONGBLOB, payload_sha256 BINARY(32), payload_size BIGINT, content_type TEXT, headers LONGTEXT,
    message_uuid BLOB, broker TEXT, topic TEXT, consumer TEXT, handler TEXT, exchange TEXT, routing_key BLOB, message_key LONGBLOB,
    position TEXT, broker_time DATETIME(6), reason TEXT, error_class TEXT, error_code TEXT, rule TEXT, fingerprint VARCHAR(64),
    attempts INT, version BIGINT, seen_count INT, death_redrive INT, lease_until DATETIME(6), run_id VARCHAR(64),
    first_failure_at DATETIME(6), died_at DATETIME(6), last_seen_at DATETIME(6), succeeded_at DATETIME(6), changed_at DATETIME(6),
    changed_by TEXT, revision INT, dedup_key BINARY(32),
    archived_at DATETIME(6) NOT NULL,
    INDEX idx_dlq_archive_event_id (event_id(191))
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- +goose Down
DROP TABLE dlq_events_archive;
DROP VIEW dlq_events;
DROP TABLE dlq_audit;
DROP TABLE dlq_uncounted;
DROP TABLE dlq_hours;
DROP TABLE dlq_counts;
DROP TABLE dlq_groups;
DROP TABLE dlq_parts;
DROP TABLE dlq_bodies;
DROP TABLE dlq_entries;
