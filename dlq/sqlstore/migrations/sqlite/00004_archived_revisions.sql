-- +goose Up

-- A purge kept the last revision of a message in the archive, and the one that died first was gone. The revisions before the last are here.
CREATE TABLE IF NOT EXISTS dlq_bodies_archive (
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

-- +goose Down
DROP TABLE dlq_bodies_archive;
