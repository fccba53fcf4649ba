-- +goose Up

-- A purge kept the last revision of a message in the archive, and the one that died first was gone. The revisions before the last are here.
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

-- +goose Down
DROP TABLE archive.dlq_bodies_archive;
