-- +goose Up
-- One row per topic and consumer group. consumer_group is '' while no group has subscribed to the topic: the first group
-- takes that row over, and with it the messages published before. "first" is 1 on one row per topic and NULL on the
-- others, so that two processes cannot both make the first row. Names are bytes: no collation folds two
-- into one.
CREATE TABLE IF NOT EXISTS redrive_queues (
    id             BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
    topic          VARBINARY(255) NOT NULL,
    consumer_group VARBINARY(255) NOT NULL,
    first          SMALLINT       NULL,
    UNIQUE KEY redrive_queues_group (topic, consumer_group),
    UNIQUE KEY redrive_queues_first (topic, first)
) ENGINE = InnoDB;

-- One row per message and group. All times are microseconds since 1970 by the database's clock: no session's time zone
-- can shift them. The key is the only index a claim reads: due rows of a queue stand at its beginning in the order of
-- delivery, and rows that wait or are leased stand behind them, however many there are.
CREATE TABLE IF NOT EXISTS redrive_queue_messages (
    id           BIGINT     NOT NULL AUTO_INCREMENT PRIMARY KEY,
    queue_id     BIGINT     NOT NULL,
    visible_at   BIGINT     NOT NULL,
    due_at       BIGINT     NOT NULL,
    published_at BIGINT     NOT NULL,
    lease        BIGINT     NULL,
    deliveries   INT        NOT NULL DEFAULT 0,
    crashes      INT        NOT NULL DEFAULT 0, -- leases in a row that ended without an answer
    started      SMALLINT   NOT NULL DEFAULT 0, -- not 0: of a row with crashes, the handler has begun
    uuid         VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    headers      LONGTEXT   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    payload      LONGBLOB   NOT NULL,
    KEY redrive_queue_messages_visible (queue_id, visible_at, id)
) ENGINE = InnoDB;

-- +goose Down
DROP TABLE redrive_queue_messages;
DROP TABLE redrive_queues;
