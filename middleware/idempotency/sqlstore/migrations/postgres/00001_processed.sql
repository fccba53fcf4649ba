-- +goose Up
-- +goose StatementBegin
LOCK TABLE redrive_processed_schema; -- a process that was killed may still be migrating: see sqldb.Schema.Up

-- One row per message that a consumer handles or has handled. Times are microseconds since 1970 by the database's clock.
CREATE TABLE IF NOT EXISTS redrive_processed (
    consumer   BYTEA NOT NULL,
    message_id BYTEA NOT NULL,
    done       SMALLINT NOT NULL, -- 1 when the effect has happened
    owner      BIGINT NOT NULL,
    until      BIGINT NOT NULL, -- end of the owner's lease, or of the retention
    outcome    BYTEA NULL,     -- messages that the handler produced
    PRIMARY KEY (consumer, message_id)
);
CREATE INDEX IF NOT EXISTS redrive_processed_until ON redrive_processed (until);
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DROP TABLE redrive_processed;
-- +goose StatementEnd
