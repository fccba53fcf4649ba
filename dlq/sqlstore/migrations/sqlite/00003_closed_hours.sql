-- +goose Up

-- Closed entries are counted by the hour, like new ones, so that a dashboard shows both. A cause finds its hours by the index.
ALTER TABLE dlq_hours ADD COLUMN closed INTEGER NOT NULL DEFAULT 0;
INSERT INTO dlq_hours (hour, fingerprint, entries, closed)
SELECT strftime('%Y-%m-%d %H:00:00.000000', resolved_at), fingerprint, 0, count(*) FROM dlq_entries WHERE resolved_at IS NOT NULL GROUP BY 1, 2
ON CONFLICT (hour, fingerprint) DO UPDATE SET closed = excluded.closed;
CREATE INDEX idx_dlq_hours_fingerprint ON dlq_hours (fingerprint, hour);

-- +goose Down
DROP INDEX idx_dlq_hours_fingerprint;
ALTER TABLE dlq_hours DROP COLUMN closed;
