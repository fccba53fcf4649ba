package examples_test

import (
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/natsserver"
	"github.com/redrive-go/redrive/integration/services"
)

// On every real broker, the program prints the same numbers as in memory (examples/orders/main_test.go).
const (
	chargeLine  = `charge\s+2400\s+2240\s+148\s+12\s+0\s+balanced`
	loyaltyLine = `loyalty\s+2240\s+2231\s+9\s+0\s+0\s+balanced`
	redriven    = `charge\s+10\s+10\s+0\s+0\s+0\s+balanced`
)

var brokerURLs = map[string]func(t *testing.T) string{
	"memory":     func(*testing.T) string { return "mem://" },
	"RabbitMQ":   func(t *testing.T) string { t.Helper(); return services.SharedRabbitMQ(t).VHost(t) },
	"Kafka":      func(t *testing.T) string { t.Helper(); return sharedKafka.forTest(t).URL() },
	"NATS":       func(t *testing.T) string { t.Helper(); return natsserver.Start(t).URL() },
	"PostgreSQL": func(t *testing.T) string { t.Helper(); return services.SharedPostgres(t).Database(t) },
	"MariaDB":    func(t *testing.T) string { t.Helper(); return services.SharedMariaDB(t).Database(t) },
	"MySQL":      func(t *testing.T) string { t.Helper(); return services.SharedMySQL(t).Database(t) },
	"SQLite":     func(t *testing.T) string { t.Helper(); return "sqlite://" + filepath.Join(t.TempDir(), "queue.db") },

	// Watermill's own adapters, whose retries wait in a queue on SQLite.
	"gochannel": func(*testing.T) string { return "gochannel://" },
	"watermill-amqp": func(t *testing.T) string {
		t.Helper()
		return "watermill+" + services.SharedRabbitMQ(t).VHost(t)
	},
	"watermill-kafka": func(t *testing.T) string { t.Helper(); return "watermill+" + sharedKafka.forTest(t).URL() },
	"watermill-sql": func(t *testing.T) string {
		t.Helper()
		return "watermill+" + services.SharedPostgres(t).Database(t)
	},
	"watermill-mysql": func(t *testing.T) string {
		t.Helper()
		return "watermill+" + services.SharedMySQL(t).Database(t)
	},
}

func TestOrders_SameResultsOnEveryBroker(t *testing.T) {
	t.Parallel()
	for name, url := range brokerURLs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := urls{url(t), sqliteFile(t), "sqlite://" + filepath.Join(t.TempDir(), "delays.db")}
			if name == "MySQL" { // which stores the dead letters in the queue's database
				at.letters = at.broker
			}
			r := run(t, "orders", at, "-speed", "20")
			t.Log(regexp.MustCompile(`Ledger after .*`).FindString(r.stdout))
			require.Zero(t, r.code, r.stdout+r.stderr)
			require.Regexp(t, chargeLine, r.stdout)
			require.Regexp(t, loyaltyLine, r.stdout)
			require.Contains(t, r.stdout, "The 157 dead letters are in ")
			require.Equal(t, 157, count(t, openStore(t, at.letters), `SELECT COUNT(*) FROM dlq_events WHERE status = 'PENDING'`))

			r = run(t, "orders", at, "-redrive")
			require.Zero(t, r.code, r.stdout+r.stderr)
			require.Regexp(t, redriven, r.stdout)
			require.Equal(t, 147, count(t, openStore(t, at.letters), `SELECT COUNT(*) FROM dlq_events WHERE status = 'PENDING'`))
		})
	}
}
