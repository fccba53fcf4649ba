-- +goose Up

-- Deaths after a redrive are counted by the hour too. What is in the audit log counts with the cause that its entry has now.
ALTER TABLE dlq_hours ADD COLUMN died_again INTEGER NOT NULL DEFAULT 0;
INSERT INTO dlq_hours (hour, fingerprint, entries, died_again)
SELECT substr(a.at, 1, 13) || ':00:00.000000', e.fingerprint, 0, count(*) FROM dlq_audit a JOIN dlq_entries e ON e.id = a.entry_id
WHERE a.action = 'die' GROUP BY 1, 2
ON CONFLICT (hour, fingerprint) DO UPDATE SET died_again = excluded.died_again;

-- +goose Down
ALTER TABLE dlq_hours DROP COLUMN died_again;
