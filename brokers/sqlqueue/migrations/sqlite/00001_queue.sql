-- +goose Up
-- +goose StatementBegin
-- One row per topic and consumer group. consumer_group is '' while no group has subscribed to the topic: the first group
-- takes that row over, and with it the messages published before. "first" is 1 on one row per topic and NULL on the
-- others, so that two processes cannot both make the first row.
CREATE TABLE IF NOT EXISTS redrive_queues (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    topic          BLOB    NOT NULL,
    consumer_group BLOB    NOT NULL,
    first          INTEGER NULL,
    UNIQUE (topic, consumer_group),
    UNIQUE (topic, first)
);

-- One row per message and group. All times are microseconds since 1970.
CREATE TABLE IF NOT EXISTS redrive_queue_messages (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    queue_id     INTEGER NOT NULL,
    visible_at   INTEGER NOT NULL, -- due time, or end of the lease while a worker has the row
    due_at       INTEGER NOT NULL,
    published_at INTEGER NOT NULL,
    lease        INTEGER NULL,     -- the worker that has the row
    deliveries   INTEGER NOT NULL DEFAULT 0,
    crashes      INTEGER NOT NULL DEFAULT 0, -- leases in a row that ended without an answer
    started      INTEGER NOT NULL DEFAULT 0, -- not 0: of a row with crashes, the handler has begun
    uuid         TEXT    NOT NULL,
    headers      TEXT    NOT NULL, -- JSON object of strings
    payload      BLOB    NOT NULL
);

-- The only index a claim reads: due rows of a queue stand at its beginning in the order of delivery, and rows that wait
-- or are leased stand behind them, however many there are.
CREATE INDEX IF NOT EXISTS redrive_queue_messages_visible ON redrive_queue_messages (queue_id, visible_at, id);
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DROP TABLE redrive_queue_messages;
DROP TABLE redrive_queues;
-- +goose StatementEnd
