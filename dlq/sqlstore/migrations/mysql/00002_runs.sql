-- +goose Up

-- Entries that wait for a person are counted apart.
ALTER TABLE dlq_groups ADD COLUMN parked BIGINT NOT NULL DEFAULT 0;
ALTER TABLE dlq_counts ADD COLUMN parked BIGINT NOT NULL DEFAULT 0;

-- Redrive runs. The document is the run as JSON; what a step changes, and what is searched, has columns.
CREATE TABLE dlq_runs (
    seq         BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    run_id      VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL UNIQUE,
    state       VARCHAR(20)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version     BIGINT       NOT NULL,
    created_at  DATETIME(6)  NOT NULL,
    created_by  TEXT         NOT NULL,
    document    LONGTEXT     NOT NULL,
    holder      VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    lease_until DATETIME(6),
    frozen_to   BIGINT NOT NULL DEFAULT 0,
    freeze_to   BIGINT NOT NULL DEFAULT 0,
    n_waiting   BIGINT NOT NULL DEFAULT 0,
    n_claimed   BIGINT NOT NULL DEFAULT 0,
    n_out       BIGINT NOT NULL DEFAULT 0,
    n_succeeded BIGINT NOT NULL DEFAULT 0,
    n_failed    BIGINT NOT NULL DEFAULT 0,
    n_lost      BIGINT NOT NULL DEFAULT 0,
    n_skipped   BIGINT NOT NULL DEFAULT 0,
    INDEX idx_dlq_runs_created_at (created_at),
    INDEX idx_dlq_runs_state (state, created_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The frozen sets. The key is the order in which a run goes through them.
CREATE TABLE dlq_run_items (
    run_seq       BIGINT      NOT NULL,
    entry_id      BIGINT      NOT NULL,
    state         VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version       BIGINT      NOT NULL,
    revision      BIGINT      NOT NULL,
    redrive       BIGINT      NOT NULL DEFAULT 0,
    claimed_until DATETIME(6),
    settled_at    DATETIME(6),
    detail        TEXT,
    PRIMARY KEY (run_seq, entry_id),
    INDEX idx_dlq_run_items_state (run_seq, state, entry_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- +goose Down
DROP TABLE dlq_run_items;
DROP TABLE dlq_runs;
ALTER TABLE dlq_counts DROP COLUMN parked;
ALTER TABLE dlq_groups DROP COLUMN parked;
