-- +goose Up

-- What receivers were notified of. The row without a receiver names the process that notifies, and until when; one without an id is when its
-- receiver was first served.
CREATE TABLE dlq_notices (
    receiver VARCHAR(255) NOT NULL,
    id       VARCHAR(255) NOT NULL,
    at       DATETIME(6) NOT NULL,
    holder   VARCHAR(255) NOT NULL,
    PRIMARY KEY (receiver, id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
INSERT INTO dlq_notices (receiver, id, at, holder) VALUES ('', '', '2000-01-01 00:00:00', '');

-- The muted causes.
CREATE TABLE dlq_mutes (
    fingerprint VARCHAR(255) NOT NULL PRIMARY KEY,
    muted_at    DATETIME(6) NOT NULL,
    until       DATETIME(6),
    muted_by    VARCHAR(255) NOT NULL,
    note        TEXT NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- +goose Down
DROP TABLE dlq_mutes;
DROP TABLE dlq_notices;
