package examples_test

import (
	"database/sql"
	"regexp"
	"strings"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/integration/services"
)

// counts are the output lines of examples/employees for its own input, on every broker.
var counts = []string{
	`employee-create\s+1814\s+1215\s+599\s+0`,
	`employee-update\s+926\s+605\s+321\s+0`,
	`employee-delete\s+260\s+180\s+80\s+0`,
	`1000 invalid events, 1000 rows in dlq_events`,
}

// System C end to end on Kafka and PostgreSQL: 1,000 invalid events are stored as 1,000 rows with topic, partition and
// offset, the group's offsets are at the end of every partition, and a corrected event is processed.
func TestEmployees_OnKafka(t *testing.T) {
	t.Parallel()
	kafka := sharedKafka.forTest(t)
	at := urls{broker: kafka.URL(), letters: services.SharedPostgres(t).Database(t)}
	r := run(t, "employees", at)
	require.Zero(t, r.code, r.stdout+r.stderr)
	for _, line := range counts {
		require.Regexp(t, line, r.stdout)
	}

	db := openStore(t, at.letters)
	require.Equal(t, 1000, count(t, db, `SELECT COUNT(*) FROM (SELECT DISTINCT kafka_topic, kafka_partition, kafka_offset
		FROM dlq_events WHERE status = 'PENDING' AND kafka_partition IS NOT NULL AND kafka_offset IS NOT NULL) AS coordinates`))
	require.Zero(t, count(t, db, `SELECT COUNT(*) FROM dlq_events WHERE attempts <> 1`),
		"validation is never retried (C16)")
	require.Zero(t, lag(t, kafka.Brokers, "payroll", "employee-create", "employee-update", "employee-delete"),
		"the offset is also committed after an error (C12)")

	hint := regexp.MustCompile(`-fix (EMP-\d+)`).FindStringSubmatch(r.stdout)
	require.NotNil(t, hint, r.stdout)
	r = run(t, "employees", at, "-fix", hint[1], "-set", "cpf=529.982.247-25")
	require.Zero(t, r.code, r.stdout+r.stderr)
	require.Contains(t, r.stdout, hint[1]+" is RESOLVED after 1 redrive(s).")
	require.Equal(t, 999, count(t, db, `SELECT COUNT(*) FROM dlq_events WHERE status = 'PENDING'`))
}

// Broker and store are URLs: the same program prints the same numbers on all of them. Each broker is combined with a
// different store.
func TestEmployees_OnEveryBrokerAndStore(t *testing.T) {
	t.Parallel()
	stores := map[string]func(t *testing.T) string{
		"PostgreSQL": func(t *testing.T) string { t.Helper(); return services.SharedPostgres(t).Database(t) },
		"MariaDB":    func(t *testing.T) string { t.Helper(); return services.SharedMariaDB(t).Database(t) },
		"MySQL":      func(t *testing.T) string { t.Helper(); return services.SharedMySQL(t).Database(t) },
		"SQLite":     sqliteFile,
	}
	for _, tc := range []struct{ broker, store string }{
		{"memory", "MariaDB"},
		{"RabbitMQ", "PostgreSQL"},
		{"PostgreSQL", "PostgreSQL"},
		{"MariaDB", "SQLite"},
		{"SQLite", "MariaDB"},
		{"MySQL", "MySQL"},
	} {
		t.Run(tc.broker+" and "+tc.store, func(t *testing.T) {
			t.Parallel()
			at := urls{broker: brokerURLs[tc.broker](t), letters: stores[tc.store](t)}
			r := run(t, "employees", at)
			require.Zero(t, r.code, r.stdout+r.stderr)
			for _, line := range counts {
				require.Regexp(t, line, r.stdout)
			}
			require.Equal(t, 1000,
				count(t, openStore(t, at.letters), `SELECT COUNT(*) FROM dlq_events WHERE status = 'PENDING'`))
		})
	}
}

func openStore(t *testing.T, url string) *sql.DB {
	t.Helper()
	driver, dsn := "pgx", url
	switch {
	case strings.HasPrefix(url, "sqlite:"):
		driver, dsn = "sqlite", strings.TrimPrefix(url, "sqlite:")
	case strings.HasPrefix(url, "mysql:"):
		var err error
		driver = "mysql"
		dsn, err = services.MySQLDSN(url)
		require.NoError(t, err)
	}
	db, err := sql.Open(driver, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func count(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), query).Scan(&n))
	return n
}

// lag returns how many records of the topics are after the group's committed offsets.
func lag(t *testing.T, addrs []string, group string, topics ...string) (n int64) {
	t.Helper()
	client, err := sarama.NewClient(addrs, sarama.NewConfig())
	require.NoError(t, err)
	admin, err := sarama.NewClusterAdminFromClient(client)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, admin.Close()) }) // also closes the client
	for _, topic := range topics {
		partitions, err := client.Partitions(topic)
		require.NoError(t, err)
		committed, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: partitions})
		require.NoError(t, err)
		for _, p := range partitions {
			end, err := client.GetOffset(topic, p, sarama.OffsetNewest)
			require.NoError(t, err)
			n += end - max(committed.GetBlock(topic, p).Offset, 0) // -1 where nothing was consumed
		}
	}
	return n
}
