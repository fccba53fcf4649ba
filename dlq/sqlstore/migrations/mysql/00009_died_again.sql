-- +goose Up

-- Deaths after a redrive are counted by the hour too. What is in the audit log counts with the cause that its entry has now.
ALTER TABLE dlq_hours ADD COLUMN died_again BIGINT NOT NULL DEFAULT 0;
INSERT INTO dlq_hours (hour, fingerprint, entries, died_again)
SELECT CAST(DATE_FORMAT(a.at, '%Y-%m-%d %H:00:00') AS DATETIME(6)), e.fingerprint, 0, COUNT(*) FROM dlq_audit a
JOIN dlq_entries e ON e.id = a.entry_id WHERE a.action = 'die' GROUP BY 1, 2
ON DUPLICATE KEY UPDATE died_again = VALUES(died_again);

-- +goose Down
ALTER TABLE dlq_hours DROP COLUMN died_again;
