-- +goose Up

-- What a person sends without a second one, so that no way of sending escapes the limit of what one may send alone. A run that has not ended
-- is open: it counts until its end, however old it is. The row whose key begins with "person" is the lock of that person's rows.
CREATE TABLE IF NOT EXISTS dlq_sends (
    send_key VARCHAR(255) NOT NULL PRIMARY KEY,
    person   VARCHAR(255) NOT NULL,
    at       DATETIME(6) NOT NULL,
    entries  BIGINT NOT NULL,
    is_open  INTEGER NOT NULL,
    INDEX idx_dlq_sends_person (person, at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Tokens of the HTTP server by their digest, and the sessions of people who logged in, by the digest of their cookie.
CREATE TABLE IF NOT EXISTS dlq_tokens (
    name       VARCHAR(255) NOT NULL PRIMARY KEY,
    role       VARCHAR(20) NOT NULL,
    digest     VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL UNIQUE,
    created_at DATETIME(6) NOT NULL,
    created_by TEXT NOT NULL,
    expires_at DATETIME(6),
    used_at    DATETIME(6),
    revoked_at DATETIME(6),
    revoked_by TEXT
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
CREATE TABLE IF NOT EXISTS dlq_sessions (
    digest     VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    name       VARCHAR(255) NOT NULL,
    role       VARCHAR(20) NOT NULL,
    created_at DATETIME(6) NOT NULL,
    expires_at DATETIME(6) NOT NULL,
    used_at    DATETIME(6) NOT NULL,
    INDEX idx_dlq_sessions_expires_at (expires_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- +goose Down
DROP TABLE IF EXISTS dlq_sessions;
DROP TABLE IF EXISTS dlq_tokens;
DROP TABLE IF EXISTS dlq_sends;
