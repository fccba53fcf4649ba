package examples_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// These are the tables of consumers with their own dead letter table, with letters of earlier months.
const deadLetterTable = `
CREATE TABLE public.dlq_events (
    id BIGSERIAL PRIMARY KEY, event_id VARCHAR(50) NOT NULL, event_type VARCHAR(50) NOT NULL, source_table VARCHAR(50),
    source_id VARCHAR(50), event_payload JSONB NOT NULL, error_message TEXT NOT NULL, stack_trace TEXT, retry_count INTEGER DEFAULT 0,
    max_retries INTEGER DEFAULT 3, status VARCHAR(20) DEFAULT 'PENDING', created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    last_retry_at TIMESTAMP, resolved_at TIMESTAMP, resolved_by VARCHAR(50), kafka_offset BIGINT, kafka_partition INTEGER,
    kafka_topic VARCHAR(100), correlation_id UUID);
CREATE INDEX idx_dlq_status ON dlq_events(status);
CREATE INDEX idx_dlq_created_at ON dlq_events(created_at);
CREATE INDEX idx_dlq_source_id ON dlq_events(source_id);
CREATE INDEX idx_dlq_event_type ON dlq_events(event_type);
CREATE SCHEMA archive;
CREATE TABLE archive.dlq_events_archive (LIKE dlq_events INCLUDING ALL);
INSERT INTO dlq_events (event_id, event_type, source_id, event_payload, error_message, status, created_at, kafka_offset, kafka_partition,
    kafka_topic)
SELECT 'before-' || n, 'EmployeeHired', 'before-' || n, jsonb_build_object('id', 'before-' || n, 'cpf', ''),
    'Falha na validação: CPF inválido', CASE n % 5 WHEN 0 THEN 'RESOLVED' ELSE 'PENDING' END, now() - n * interval '10 days',
    1000 + n, n % 4, 'payroll-employees'
FROM generate_series(1, 20) n`

const employees = "payroll-employees"

// tableMove is a system with a dead letter table that migrates according to its guide.
type tableMove struct {
	t      *testing.T
	kafka  *services.KafkaServer
	store  string
	db     *sql.DB
	page   string
	binary string // of redrive

	mu      sync.Mutex
	handled map[string]string // by consumer
	log     bytes.Buffer
}

// This test follows the guide for a dead letter table literally; see its last lines.
func TestMove_DeadLetterTable(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/migrate/dead-letter-table.md")
	require.NoError(t, err)
	m := &tableMove{
		t: t, kafka: sharedKafka.forTest(t), store: services.SharedPostgres(t).Database(t), page: string(page),
		handled: map[string]string{}, binary: services.Program(t, "./cmd/redrive"),
	}
	m.db = openStore(t, m.store)
	_, err = m.db.ExecContext(t.Context(), deadLetterTable)
	require.NoError(t, err)
	m.topic(4)

	m.publish(0, 20)
	stopOld := m.old()
	m.settled(16, "dlq_events", 24)
	stopOld()
	out := m.typed("redrive migrate ", 0)
	require.Contains(t, out, "PENDING    20 before, 20 after")
	require.Contains(t, out, "RESOLVED   4 before, 4 after")

	stopOld = m.old()
	stopServer := m.background("server", m.line("redrive serve", 0), "serving")
	stopNew := m.background("new", m.program(), "Starting handler")
	m.readers(2)
	m.publish(20, 60)
	m.settled(48, "(SELECT source_id FROM dlq_events UNION ALL SELECT source_id FROM dlq_events_before_redrive) e", 32)
	stopOld()
	_, err = m.db.ExecContext(t.Context(), m.sql(0))
	require.NoError(t, err)
	m.typed("redrive migrate ", 1)
	m.settled(48, "dlq_events", 32-3) // three are deleted
	require.Equal(t, 1, count(t, m.db, "SELECT count(*) FROM dlq_events e JOIN dlq_audit a ON a.entry_id = e.id AND "+
		"a.action = 'resolve'"+
		" WHERE e.event_id = 'before-6' AND e.resolved_by = 'maria' AND a.actor = 'maria'"))
	require.Equal(t, 1, count(t, m.db, "SELECT count(*) FROM dlq_events WHERE event_id = 'before-7' AND revision = 1"+
		" AND event_payload->>'cpf' <> ''"))
	require.Equal(t, 3, count(t, m.db, "SELECT count(*) FROM archive.dlq_events_archive"))
	require.Equal(t, 29, count(t, m.db, "SELECT count(*) FROM dlq_events"))

	m.readers(1)
	m.typed("redrive dlq redrive ", 0)
	await.Progress(t, func() (open int, done bool) {
		open = count(t, m.db, "SELECT count(*) FROM dlq_events WHERE status <> 'RESOLVED'")
		return open, open == 0
	}, "%s", m.said())
	// The table may have it before the process's output is read here.
	await.Count(t, 15, func() int { return m.count("new", "before-") },
		"the earlier dead letters too, except those that maria resolved")
	await.Count(t, 15+60, func() int { return m.count("", "") }, "all dead letters since")
	require.Equal(t, []int{15, 15 + 60}, []int{m.count("new", "before-"), m.count("", "")})

	stopNew()
	stopServer()
	_, err = m.db.ExecContext(t.Context(), m.sql(1))
	require.NoError(t, err)
	require.Equal(t, 29, count(t, m.db, "SELECT count(*) FROM dlq_events WHERE status = 'RESOLVED'"))
	require.Equal(t, 29, count(t, m.db, "SELECT count(*) FROM dlq_events"))
	stopOld = m.old()
	m.publish(60, 80)
	m.settled(76, "dlq_events", 33)
	require.Equal(t, 4, count(t, m.db, "SELECT count(*) FROM dlq_events WHERE status = 'PENDING'"), "as before")
	_, archive, _ := strings.Cut(m.sql(0), "INSERT INTO archive")
	_, err = m.db.ExecContext(t.Context(), "INSERT INTO archive"+archive)
	require.NoError(t, err, "their job")
	stopOld()
	out = m.typed("redrive migrate ", 2)
	require.Contains(t, out, "PENDING    4 before, 4 after")
	require.Contains(t, out, "RESOLVED   29 before, 29 after")
}

func (m *tableMove) topic(partitions int32) {
	m.t.Helper()
	admin, err := sarama.NewClusterAdmin(m.kafka.Brokers, sarama.NewConfig())
	require.NoError(m.t, err)
	m.t.Cleanup(func() {
		// for repeated runs of the test
		_ = errors.Join(admin.DeleteTopic(employees), admin.DeleteConsumerGroup("payroll"), admin.Close())
	})
	require.NoError(m.t, admin.CreateTopic(employees, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1},
		false))
	// The controller answers before the broker leads the partitions.
	await.True(m.t, func() bool {
		topics, err := admin.DescribeTopics([]string{employees})
		return err == nil && len(topics) == 1 && len(topics[0].Partitions) == int(partitions) &&
			!slices.ContainsFunc(topics[0].Partitions, func(p *sarama.PartitionMetadata) bool {
				return p.Err != sarama.ErrNoError
			})
	}, "each partition of a new topic gets a leader")
}

// publish sends events, of which every fifth is invalid.
func (m *tableMove) publish(from, to int) {
	m.t.Helper()
	cfg := sarama.NewConfig()
	cfg.Producer.Return.Successes = true
	producer, err := sarama.NewSyncProducer(m.kafka.Brokers, cfg)
	require.NoError(m.t, err)
	defer producer.Close()
	for i := from; i < to; i++ {
		id, number := "e-"+strconv.Itoa(i), "529.982.247-25"
		if i%5 == 0 {
			number = ""
		}
		body := fmt.Sprintf(`{"id": %q, "cpf": %q}`, id, number)
		record := &sarama.ProducerMessage{Topic: employees, Key: sarama.StringEncoder(id), Value: sarama.StringEncoder(body)}
		_, _, err := producer.SendMessage(record)
		require.NoError(m.t, err)
	}
}

// old starts the original consumer, which always commits, and inserts invalid events.
func (m *tableMove) old() (stop func()) {
	m.t.Helper()
	cfg := sarama.NewConfig()
	cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
	cfg.Consumer.Offsets.AutoCommit.Enable = false
	cfg.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	cfg.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange()}
	group, err := sarama.NewConsumerGroup(m.kafka.Brokers, "payroll", cfg)
	require.NoError(m.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			if err := group.Consume(ctx, []string{employees}, m); err != nil && ctx.Err() == nil {
				m.note("old", err.Error())
			}
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		_ = group.Close() // it has ended
	})
	m.t.Cleanup(stop)
	return stop
}

func (*tableMove) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*tableMove) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// ConsumeClaim is the original consumer's loop.
func (m *tableMove) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for record := range claim.Messages() {
		var e struct{ ID, CPF string }
		if err := json.Unmarshal(record.Value, &e); err != nil {
			return err
		}
		if e.CPF != "" {
			m.note("old", "handled "+e.ID)
		} else if _, err := m.db.ExecContext(context.Background(),
			`INSERT INTO dlq_events (event_id, event_type, source_table, source_id,
			event_payload, error_message, kafka_offset, kafka_partition, kafka_topic)
			VALUES ($1, 'EmployeeHired', 'employees', $1, $2, $3, $4, $5, $6)`,
			e.ID, string(record.Value), "Falha na validação: CPF inválido", record.Offset, record.Partition,
			record.Topic); err != nil {
			return err
		}
		session.MarkMessage(record, "")
		session.Commit()
	}
	return nil
}

// line returns the nth console line of the guide that starts with that text.
func (m *tableMove) line(begins string, n int) *exec.Cmd {
	m.t.Helper()
	var found []string
	for line := range strings.Lines(m.page) {
		if typed, ok := strings.CutPrefix(line, "$ "); ok && strings.HasPrefix(typed, begins) {
			found = append(found, typed)
		}
	}
	require.Greater(m.t, len(found), n, begins)
	export := regexp.MustCompile(`(?m)^\$ (export REDRIVE_.*)$`).FindStringSubmatch(m.page)
	require.NotNil(m.t, export, "the guide sets no variables for the commands")
	return m.command("sh", "-c", export[1]+"\nexec "+found[n])
}

// sql returns the nth block of SQL in the guide.
func (m *tableMove) sql(n int) string {
	m.t.Helper()
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(m.page, -1)
	require.Greater(m.t, len(blocks), n)
	return blocks[n][1]
}

func (m *tableMove) typed(begins string, n int) string {
	m.t.Helper()
	out, err := m.line(begins, n).CombinedOutput()
	require.NoError(m.t, err, string(out))
	return string(out)
}

func (m *tableMove) program() *exec.Cmd {
	m.t.Helper()
	return m.command(services.Program(m.t, "./examples/migrate/dead-letter-table"))
}

// command has the two variables of the guide. Only the server's port differs, because the one in the guide may be
// taken.
func (m *tableMove) command(name string, args ...string) *exec.Cmd {
	m.t.Helper()
	dir := m.t.TempDir()
	config := filepath.Join(dir, "redrive.yaml")
	require.NoError(m.t, os.WriteFile(config,
		fmt.Appendf(nil, "store: {url: %q}\nserver: {address: '127.0.0.1:0'}\n", m.store), 0o600))
	query := regexp.MustCompile("`kafka://[^?`]*([^`]*)`").FindStringSubmatch(m.page)
	require.NotNil(m.t, query, "the guide names no URL")
	command := exec.CommandContext(context.Background(), name, args...)
	command.Dir = dir
	command.Env = append(os.Environ(), "PATH="+filepath.Dir(m.binary)+":"+os.Getenv("PATH"), "REDRIVE_CONFIG="+config,
		"REDRIVE_ACTOR=ana",
		"BROKER_URL="+m.kafka.URL()+query[1], "DLQ_URL="+m.store)
	return command
}

// background starts a command and returns once it has printed that it is ready.
func (m *tableMove) background(who string, command *exec.Cmd, ready string) (stop func()) {
	m.t.Helper()
	read, write := io.Pipe()
	command.Stdout, command.Stderr = write, write
	require.NoError(m.t, command.Start())
	go func() {
		lines := bufio.NewScanner(read)
		for lines.Scan() {
			m.note(who, lines.Text())
		}
	}()
	stop = sync.OnceFunc(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait() // it was asked to stop
		_ = write.Close()  // of a pipe
	})
	m.t.Cleanup(stop)
	await.True(m.t, func() bool { return strings.Contains(m.said(), ready) }, "%s did not start: %s", who, m.said())
	return stop
}

var handledEvent = regexp.MustCompile(`handled (\S+)$`)

func (m *tableMove) note(who, line string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fmt.Fprintf(&m.log, "%s: %s\n", who, line)
	if found := handledEvent.FindStringSubmatch(line); found != nil {
		m.handled[found[1]] = who
	}
}

func (m *tableMove) said() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.log.String()
}

// count returns how many events with that prefix one of the consumers has handled, or any of them for "".
func (m *tableMove) count(who, prefix string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, by := range m.handled {
		if (who == "" || by == who) && strings.HasPrefix(id, prefix) {
			n++
		}
	}
	return n
}

// readers waits until n members of the group share the topic.
func (m *tableMove) readers(n int) {
	m.t.Helper()
	admin, err := sarama.NewClusterAdmin(m.kafka.Brokers, sarama.NewConfig())
	require.NoError(m.t, err)
	defer admin.Close()
	await.True(m.t, func() bool {
		groups, err := admin.DescribeConsumerGroups([]string{"payroll"})
		if err != nil || groups[0].State != "Stable" {
			return false
		}
		reading := 0
		for _, member := range groups[0].Members {
			if assigned, err := member.GetMemberAssignment(); err == nil && assigned != nil &&
				len(assigned.Topics[employees]) > 0 {
				reading++
			}
		}
		return reading == n
	}, "%s", m.said())
}

// settled waits until that many events are handled, and that many are in the table, earlier ones included.
func (m *tableMove) settled(handled int, table string, dead int) {
	m.t.Helper()
	await.Progress(m.t, func() (far int, done bool) {
		far = m.count("old", "e-") + m.count("new", "e-") + count(m.t, m.db, "SELECT count(DISTINCT source_id) FROM "+table)
		return far, far == handled+dead
	}, "%s", m.said())
}
