-- +goose Up
-- +goose StatementBegin
-- One row per message that a consumer handles or has handled. Times are microseconds since 1970 by the database's clock.
CREATE TABLE IF NOT EXISTS redrive_processed (
    consumer   BLOB NOT NULL,
    message_id BLOB NOT NULL,
    done       INTEGER NOT NULL, -- 1 when the effect has happened
    owner      INTEGER NOT NULL,
    until      INTEGER NOT NULL, -- end of the owner's lease, or of the retention
    outcome    BLOB NULL,     -- messages that the handler produced
    PRIMARY KEY (consumer, message_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS redrive_processed_until ON redrive_processed (until);
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DROP TABLE redrive_processed;
-- +goose StatementEnd
