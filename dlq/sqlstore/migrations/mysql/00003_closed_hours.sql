-- +goose Up

-- Closed entries are counted by the hour, like new ones, so that a dashboard shows both. A cause finds its hours by the index.
ALTER TABLE dlq_hours ADD COLUMN closed BIGINT NOT NULL DEFAULT 0, ADD INDEX idx_dlq_hours_fingerprint (fingerprint, hour);
INSERT INTO dlq_hours (hour, fingerprint, entries, closed)
SELECT CAST(DATE_FORMAT(resolved_at, '%Y-%m-%d %H:00:00') AS DATETIME(6)), fingerprint, 0, COUNT(*) FROM dlq_entries WHERE resolved_at IS NOT NULL GROUP BY 1, 2
ON DUPLICATE KEY UPDATE closed = VALUES(closed);

-- +goose Down
ALTER TABLE dlq_hours DROP INDEX idx_dlq_hours_fingerprint, DROP COLUMN closed;
