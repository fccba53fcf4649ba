-- +goose Up

-- Entries that wait for a person are counted apart.
ALTER TABLE dlq_groups ADD COLUMN parked BIGINT NOT NULL DEFAULT 0;
ALTER TABLE dlq_counts ADD COLUMN parked BIGINT NOT NULL DEFAULT 0;

-- Redrive runs. The document is the run as JSON; what a step changes, and what is searched, has columns.
CREATE TABLE dlq_runs (
    seq         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id      TEXT    NOT NULL UNIQUE,
    state       TEXT    NOT NULL,
    version     BIGINT NOT NULL,
    created_at  TIMESTAMPTZ   NOT NULL,
    created_by  TEXT    NOT NULL,
    document    TEXT    NOT NULL,
    holder      TEXT    NOT NULL DEFAULT '',
    lease_until TIMESTAMPTZ,
    frozen_to   BIGINT NOT NULL DEFAULT 0,
    freeze_to   BIGINT NOT NULL DEFAULT 0,
    n_waiting   BIGINT NOT NULL DEFAULT 0,
    n_claimed   BIGINT NOT NULL DEFAULT 0,
    n_out       BIGINT NOT NULL DEFAULT 0,
    n_succeeded BIGINT NOT NULL DEFAULT 0,
    n_failed    BIGINT NOT NULL DEFAULT 0,
    n_lost      BIGINT NOT NULL DEFAULT 0,
    n_skipped   BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX idx_dlq_runs_created_at ON dlq_runs (created_at);
CREATE INDEX idx_dlq_runs_state      ON dlq_runs (state, created_at);

-- The frozen sets. The key is the order in which a run goes through them.
CREATE TABLE dlq_run_items (
    run_seq       BIGINT NOT NULL,
    entry_id      BIGINT NOT NULL,
    state         TEXT    NOT NULL,
    version       BIGINT NOT NULL,
    revision      BIGINT NOT NULL,
    redrive       BIGINT NOT NULL DEFAULT 0,
    claimed_until TIMESTAMPTZ,
    settled_at    TIMESTAMPTZ,
    detail        TEXT,
    PRIMARY KEY (run_seq, entry_id)
);
CREATE INDEX idx_dlq_run_items_state ON dlq_run_items (run_seq, state, entry_id);

-- +goose Down
DROP TABLE dlq_run_items;
DROP TABLE dlq_runs;
ALTER TABLE dlq_counts DROP COLUMN parked;
ALTER TABLE dlq_groups DROP COLUMN parked;
