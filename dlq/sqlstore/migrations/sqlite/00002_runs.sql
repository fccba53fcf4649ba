-- +goose Up

-- Entries that wait for a person are counted apart.
ALTER TABLE dlq_groups ADD COLUMN parked INTEGER NOT NULL DEFAULT 0;
ALTER TABLE dlq_counts ADD COLUMN parked INTEGER NOT NULL DEFAULT 0;

-- Redrive runs. The document is the run as JSON; what a step changes, and what is searched, has columns.
CREATE TABLE dlq_runs (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id      TEXT    NOT NULL UNIQUE,
    state       TEXT    NOT NULL,
    version     INTEGER NOT NULL,
    created_at  TEXT    NOT NULL,
    created_by  TEXT    NOT NULL,
    document    TEXT    NOT NULL,
    holder      TEXT    NOT NULL DEFAULT '',
    lease_until TEXT,
    frozen_to   INTEGER NOT NULL DEFAULT 0,
    freeze_to   INTEGER NOT NULL DEFAULT 0,
    n_waiting   INTEGER NOT NULL DEFAULT 0,
    n_claimed   INTEGER NOT NULL DEFAULT 0,
    n_out       INTEGER NOT NULL DEFAULT 0,
    n_succeeded INTEGER NOT NULL DEFAULT 0,
    n_failed    INTEGER NOT NULL DEFAULT 0,
    n_lost      INTEGER NOT NULL DEFAULT 0,
    n_skipped   INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX idx_dlq_runs_created_at ON dlq_runs (created_at);
CREATE INDEX idx_dlq_runs_state      ON dlq_runs (state, created_at);

-- The frozen sets. Without ROWID: the key is the order in which a run goes through them.
CREATE TABLE dlq_run_items (
    run_seq       INTEGER NOT NULL,
    entry_id      INTEGER NOT NULL,
    state         TEXT    NOT NULL,
    version       INTEGER NOT NULL,
    revision      INTEGER NOT NULL,
    redrive       INTEGER NOT NULL DEFAULT 0,
    claimed_until TEXT,
    settled_at    TEXT,
    detail        TEXT,
    PRIMARY KEY (run_seq, entry_id)
) WITHOUT ROWID;
CREATE INDEX idx_dlq_run_items_state ON dlq_run_items (run_seq, state, entry_id);

-- +goose Down
DROP TABLE dlq_run_items;
DROP TABLE dlq_runs;
ALTER TABLE dlq_counts DROP COLUMN parked;
ALTER TABLE dlq_groups DROP COLUMN parked;
