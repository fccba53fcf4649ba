-- +goose Up

-- What receivers were notified of. The row without a receiver names the process that notifies, and until when; one without an id is when its
-- receiver was first served.
CREATE TABLE dlq_notices (
    receiver TEXT NOT NULL,
    id       TEXT NOT NULL,
    at       TEXT NOT NULL,
    holder   TEXT NOT NULL,
    PRIMARY KEY (receiver, id)
) WITHOUT ROWID;
INSERT INTO dlq_notices (receiver, id, at, holder) VALUES ('', '', '2000-01-01 00:00:00.000000', '');

-- The muted causes.
CREATE TABLE dlq_mutes (
    fingerprint TEXT NOT NULL PRIMARY KEY,
    muted_at    TEXT NOT NULL,
    until       TEXT,
    muted_by    TEXT NOT NULL,
    note        TEXT NOT NULL
) WITHOUT ROWID;

-- +goose Down
DROP TABLE dlq_mutes;
DROP TABLE dlq_notices;
