package sqlstore_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// Consumers with their own dead letter table have the table, its indexes and its archive.
const theirTables = `
CREATE TABLE dlq_events (
    id BIGSERIAL PRIMARY KEY,
    event_id VARCHAR(50) NOT NULL,
    event_type VARCHAR(50) NOT NULL,
    source_table VARCHAR(50),
    source_id VARCHAR(50),
    event_payload JSONB NOT NULL,
    error_message TEXT NOT NULL,
    stack_trace TEXT,
    retry_count INTEGER DEFAULT 0,
    max_retries INTEGER DEFAULT 3,
    status VARCHAR(20) DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'RESOLVED', 'DISCARDED')),
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    last_retry_at TIMESTAMP,
    resolved_at TIMESTAMP,
    resolved_by VARCHAR(50),
    kafka_offset BIGINT,
    kafka_partition INTEGER,
    kafka_topic VARCHAR(100),
    correlation_id UUID
);
CREATE INDEX idx_dlq_status ON dlq_events(status);
CREATE INDEX idx_dlq_created_at ON dlq_events(created_at);
CREATE INDEX idx_dlq_source_id ON dlq_events(source_id);
CREATE INDEX idx_dlq_event_type ON dlq_events(event_type);
CREATE SCHEMA archive;
CREATE TABLE archive.dlq_events_archive (LIKE dlq_events INCLUDING ALL);
INSERT INTO archive.dlq_events_archive (event_id, event_type, event_payload, error_message) VALUES ('old', 'EmployeeHired', '{}', 'old');
INSERT INTO dlq_events (event_id, event_type, source_table, source_id, event_payload, error_message, stack_trace, status, created_at,
    resolved_at, resolved_by, kafka_offset, kafka_partition, kafka_topic, correlation_id)
SELECT 'e-' || n, 'EmployeeHired', 'employees', n, jsonb_build_object('cpf', n::text), 'Falha na validação: CPF inválido ' || n,
    'at line ' || n,
    CASE n % 10 WHEN 0 THEN 'RESOLVED' WHEN 1 THEN 'DISCARDED' ELSE 'PENDING' END, now() - n * interval '1 minute',
    CASE WHEN n % 10 = 0 THEN now() END, CASE WHEN n % 10 = 0 THEN 'maria' END, n, n % 3, 'employees', gen_random_uuid()
FROM generate_series(1, 500) n;`

// A database with a dead letter table becomes a store: every row becomes an entry, none of the existing data is lost,
// and every pending letter is redriven to its topic and closed by its consumer's report.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	url := services.SharedPostgres(t).Database(t)
	db := openDB(t, url)
	_, err := db.ExecContext(t.Context(), theirTables)
	require.NoError(t, err)
	_, err = sqlstore.Open(t.Context(), url)
	require.ErrorContains(t, err, "already exists", "the old tables exist")
	by := dlq.By{Actor: "ana"}
	_, err = sqlstore.TakeOver(t.Context(), url, "no_such_table", by)
	require.ErrorIs(t, err, dlq.ErrNotFound)

	want := map[string]int64{"PENDING": 400, "RESOLVED": 50, "DISCARDED": 50}
	for round := range 2 {
		done, err := sqlstore.TakeOver(t.Context(), url, "dlq_events", by)
		require.NoError(t, err)
		require.Equal(t, want, done.Before)
		require.Equal(t, want, done.After)
		require.Equal(t, []int64{500, 0}[round], done.Stored, "it can be repeated")
		require.Equal(t, []int64{0, 500}[round], done.Seen)
	}
	var kept, archived int
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM dlq_events_before_redrive").Scan(&kept))
	require.NoError(t, db.QueryRowContext(t.Context(),
		"SELECT count(*) FROM archive.dlq_events_archive_before_redrive").Scan(&archived))
	require.Equal(t, []int{500, 1}, []int{kept, archived}, "no existing row is lost")
	var same int
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM dlq_events e JOIN dlq_events_before_redrive b
		ON e.event_id = b.event_id AND e.event_payload = b.event_payload AND e.error_message = b.error_message AND e.status = b.status
		AND e.created_at = b.created_at::timestamptz AND e.resolved_by IS NOT DISTINCT FROM b.resolved_by
		AND e.kafka_offset = b.kafka_offset AND e.kafka_partition = b.kafka_partition AND e.kafka_topic = b.kafka_topic
		AND e.correlation_id = b.correlation_id AND e.stack_trace = b.stack_trace AND e.source_id = b.source_id`).Scan(&same))
	require.Equal(t, 500, same, "their queries have the same results")

	letters, err := dlq.Open(t.Context(), url, dlq.WithSpool(t.TempDir()), dlq.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	defer letters.Close()
	redriveAll(t, letters)
}

// redriveAll redrives all pending entries to a consumer that handles them.
func redriveAll(t *testing.T, letters *dlq.Letters) {
	t.Helper()
	broker, err := memory.New(brokers.Config{URL: "mem://"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, broker.Close()) })
	router, err := collector.NewRouter(collector.RouterConfig{Store: letters.Store(), Targets: []collector.Target{
		{Name: "log", Scheme: "kafka", Redriver: broker, Publisher: broker.Publisher(), Outcome: collector.OutcomeReported},
	}})
	require.NoError(t, err)
	messages, err := broker.Subscriber().Subscribe(t.Context(), "employees")
	require.NoError(t, err)
	handled := make(chan error, 500)
	go func() {
		for m := range messages {
			handled <- handle(t.Context(), letters, m)
			m.Ack()
		}
	}()
	runner, err := redrive.NewRunner(letters.Manager(router), redrive.Config{})
	require.NoError(t, err)
	run, err := runner.StartRun(t.Context(), redrive.Spec{Filter: dlq.Filter{Topic: "employees"}}, dlq.By{Actor: "ana"})
	require.NoError(t, err)
	run, err = runner.Drive(t.Context(), run.ID)
	require.NoError(t, err)
	require.Equal(t, redrive.Completed, run.State, run.Cause)
	require.Equal(t, int64(400), run.Counts.Succeeded)
	await.Count(t, 400, func() int { return len(handled) }, "all are handled")
	for range 400 {
		require.NoError(t, <-handled)
	}
	n, err := letters.Store().Count(t.Context(), dlq.Filter{Statuses: []dlq.Status{dlq.Pending, dlq.Retrying, dlq.Parked}},
		0)
	require.NoError(t, err)
	require.Zero(t, n)
}

// handle reports success, as a pipeline does.
func handle(ctx context.Context, letters *dlq.Letters, m *message.Message) error {
	if len(m.Payload) == 0 || m.Metadata[envelope.KeyMessageID] != m.UUID {
		return fmt.Errorf("message %s is not the dead letter", m.UUID)
	}
	return letters.Redriven(ctx, envelope.RedrivenBy(m, envelope.Origin{Topic: "employees", Consumer: "payroll"},
		time.Now()))
}
