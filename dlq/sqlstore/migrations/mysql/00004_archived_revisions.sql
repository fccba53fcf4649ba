-- +goose Up

-- A purge kept the last revision of a message in the archive, and the one that died first was gone. The revisions before the last are here.
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

-- +goose Down
DROP TABLE dlq_bodies_archive;
