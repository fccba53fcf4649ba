-- +goose Up

-- What a person sends without a second one, so that no way of sending escapes the limit of what one may send alone. A run that has not ended
-- is open: it counts until its end, however old it is. The row whose key begins with "person" is the lock of that person's rows.
CREATE TABLE dlq_sends (
    send_key TEXT     NOT NULL PRIMARY KEY,
    person   TEXT NOT NULL,
    at       TIMESTAMPTZ NOT NULL,
    entries  BIGINT NOT NULL,
    is_open  INTEGER NOT NULL
);
CREATE INDEX idx_dlq_sends_person ON dlq_sends (person, at);

-- Tokens of the HTTP server by their digest, and the sessions of people who logged in, by the digest of their cookie.
CREATE TABLE dlq_tokens (
    name       TEXT     NOT NULL PRIMARY KEY,
    role       TEXT NOT NULL,
    digest     TEXT NOT NULL UNIQUE,
    created_at TIMESTAMPTZ NOT NULL,
    created_by TEXT NOT NULL,
    expires_at TIMESTAMPTZ,
    used_at    TIMESTAMPTZ,
    revoked_at TIMESTAMPTZ,
    revoked_by TEXT
);
CREATE TABLE dlq_sessions (
    digest     TEXT     NOT NULL PRIMARY KEY,
    name       TEXT NOT NULL,
    role       TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    used_at    TIMESTAMPTZ NOT NULL
);
CREATE INDEX idx_dlq_sessions_expires_at ON dlq_sessions (expires_at);

-- +goose Down
DROP TABLE dlq_sessions;
DROP TABLE dlq_tokens;
DROP TABLE dlq_sends;
