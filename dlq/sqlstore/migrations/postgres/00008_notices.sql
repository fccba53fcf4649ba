-- +goose Up

-- What receivers were notified of. The row without a receiver names the process that notifies, and until when; one without an id is when its
-- receiver was first served.
CREATE TABLE dlq_notices (
    receiver TEXT NOT NULL,
    id       TEXT NOT NULL,
    at       TIMESTAMPTZ NOT NULL,
    holder   TEXT NOT NULL,
    PRIMARY KEY (receiver, id)
);
INSERT INTO dlq_notices (receiver, id, at, holder) VALUES ('', '', '2000-01-01 00:00:00+00', '');

-- The muted causes.
CREATE TABLE dlq_mutes (
    fingerprint TEXT NOT NULL PRIMARY KEY,
    muted_at    TIMESTAMPTZ NOT NULL,
    until       TIMESTAMPTZ,
    muted_by    TEXT NOT NULL,
    note        TEXT NOT NULL
);

-- +goose Down
DROP TABLE dlq_mutes;
DROP TABLE dlq_notices;
