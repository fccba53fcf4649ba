package command_test

import (
	"encoding/json"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// Healthy parts are reported as such, and missing queues are only a warning, because services create them at their
// first dead letter.
func TestDoctor_Healthy(t *testing.T) {
	t.Parallel()
	store, rabbit, kafka := services.SharedPostgres(t).Database(t), services.SharedRabbitMQ(t).VHost(t),
		services.SharedKafka(t)
	declare(t, rabbit, map[string]amqp.Table{"orders_dlq": nil})
	dead := kafka.CreateTopic(t, 1)
	config := configOf(store, map[string]string{"rabbit": rabbit, "kafka": kafka.URL()},
		"rabbit/orders_dlq", "rabbit/invoices_dlq", "kafka/"+dead, "kafka/none_dlq")
	made := redrive(t, config, "migrate")
	require.Zero(t, made.code, made.stderr)
	code, found := diagnose(t, config)
	require.Zero(t, code, "warnings are not problems")
	for what, want := range map[string]finding{
		"store":                    {Severity: "ok", Finding: "accepts writes"},
		"dead letters":             {Severity: "ok", Finding: "0 pending, 0 in all"},
		"broker rabbit":            {Severity: "ok", Finding: "answers (amqp)"},
		"broker kafka":             {Severity: "ok", Finding: "answers (kafka)"},
		"source rabbit/orders_dlq": {Severity: "ok", Finding: "exists"},
		"source rabbit/invoices_dlq": {
			Severity: "warning", Finding: "invoices_dlq",
			Remedy: "a service creates it at its first dead letter",
		},
		"source kafka/" + dead: {Severity: "ok", Finding: "exists"},
		"source kafka/none_dlq": {
			Severity: "warning", Finding: "none_dlq",
			Remedy: "a service creates it at its first dead letter",
		},
	} {
		if what == "store" && strings.HasPrefix(found[what].Finding, "answers in ") {
			continue // doctor correctly reports a busy machine
		}
		require.Equal(t, want.Severity, found[what].Severity, "%s: %v", what, found[what])
		require.Contains(t, found[what].Finding, want.Finding, what)
		require.Contains(t, found[what].Remedy, want.Remedy, what)
	}
}

// Everything that is harmful to a dead letter queue is shown, and a queue that is called missing is not missing.
func TestDoctor_HarmfulSource(t *testing.T) {
	t.Parallel()
	rabbit := services.SharedRabbitMQ(t).VHost(t)
	const harmed = `what is missing`
	declare(t, rabbit, map[string]amqp.Table{harmed: {"x-max-length": int32(10), "x-message-ttl": int32(60_000)}})
	config := configOf(services.SharedPostgres(t).Database(t), map[string]string{"rabbit": rabbit}, "rabbit/"+harmed)
	var findings []finding
	require.NoError(t, json.Unmarshal([]byte(redrive(t, config, "doctor", "-o", "json").stdout), &findings))
	var shown []string
	for _, f := range findings {
		if f.What == "source rabbit/"+harmed {
			require.Equal(t, "warning", f.Severity)
			require.Empty(t, f.Remedy, "the finding names it")
			shown = append(shown, f.Finding)
		}
	}
	require.Len(t, shown, 2)
	require.Contains(t, strings.Join(shown, "\n"), "x-max-length")
	require.Contains(t, strings.Join(shown, "\n"), "x-message-ttl")
}

// Each broken part is a separate problem with a separate remedy, and no password is shown.
func TestDoctor_Broken(t *testing.T) {
	t.Parallel()
	rabbit := services.SharedRabbitMQ(t).VHost(t)
	code, found := diagnose(t, configOf("postgres://redrive:s3cret@127.0.0.1:1/redrive?sslmode=disable", map[string]string{
		"refused": withPassword(t, rabbit, "s3cret"),
		"away":    "amqp://guest:s3cret@127.0.0.1:1/",
		"lost":    "kafka://127.0.0.1:1",
		"rabbit":  rabbit,
	}, "rabbit/orders_dlq"))
	require.Equal(t, 1, code)
	for what, want := range map[string]finding{
		"store":          {Severity: "problem", Finding: "refused", Remedy: "that the database runs"},
		"broker refused": {Severity: "problem", Finding: "403", Remedy: "check username and password"},
		"broker away":    {Severity: "problem", Finding: "connection refused", Remedy: "is the server running"},
		"broker lost":    {Severity: "problem", Finding: "127.0.0.1:1", Remedy: "is the server running"},
		"broker rabbit":  {Severity: "ok", Finding: "answers"},
	} {
		require.Equal(t, want.Severity, found[what].Severity, "%s: %v", what, found[what])
		require.Contains(t, found[what].Finding, want.Finding, what)
		require.Contains(t, found[what].Remedy, want.Remedy, what)
	}
	for _, f := range found {
		require.NotContains(t, f.Finding, "s3cret")
	}
}

// Watermill's own adapters are checked like the drivers: one that answers but cannot delay gets a warning with the
// remedy.
func TestDoctor_WatermillsAdapters(t *testing.T) {
	t.Parallel()
	database := services.SharedPostgres(t).Database(t)
	code, found := diagnose(t, configOf(database, map[string]string{
		"amqp":     "watermill+" + services.SharedRabbitMQ(t).VHost(t),
		"kafka":    "watermill+" + services.SharedKafka(t).URL(),
		"postgres": "watermill+" + database,
		"none":     "watermill+sqlite://dead.db",
		"mine":     "gochannel://shop",
	}))
	require.Equal(t, 1, code)
	cannotDelay := finding{Severity: "warning", Finding: "it cannot delay", Remedy: "set REDRIVE_DELAYS_URL"}
	for what, want := range map[string]finding{
		"broker amqp":     cannotDelay,
		"broker kafka":    cannotDelay,
		"broker postgres": cannotDelay,
		"broker none": {
			Severity: "problem", Finding: "open sqlite://, the native queue",
			Remedy: "check the broker's entry",
		},
		"broker mine": {
			Severity: "warning", Finding: "holds nothing that another process has sent",
			Remedy: "name a broker",
		},
	} {
		require.Equal(t, want.Severity, found[what].Severity, "%s: %v", what, found[what])
		require.Contains(t, found[what].Finding, want.Finding, what)
		require.Contains(t, found[what].Remedy, want.Remedy, what)
	}
}

// unreachable returns URLs of every broker that has a server, at an address.
func unreachable(address string) map[string]string {
	return map[string]string{
		"amqp": "amqp://guest:s3cret@" + address + "/", "kafka": "kafka://" + address, "nats": "nats://" + address,
		"postgres": "postgres://u:s3cret@" + address + "/d?sslmode=disable", "mysql": "mysql://u:s3cret@" + address + "/d",
		"watermill-amqp": "watermill+amqp://guest:s3cret@" + address + "/", "watermill-kafka": "watermill+kafka://" + address,
		"watermill-postgres": "watermill+postgres://u:s3cret@" + address + "/d?sslmode=disable",
		"watermill-mysql":    "watermill+mysql://u:s3cret@" + address + "/d",
	}
}

// If no server listens, that is reported at once, whatever the time limit; if a server does not answer, it is reported
// at the limit, although clients have timeouts and retries that may take minutes.
func TestDoctor_UnreachableServers(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0") // it accepts connections and never reads from them
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	services.Program(t, "./cmd/redrive") // built before the time is measured
	for name, c := range map[string]struct{ address, limit string }{
		"refused": {address: "127.0.0.1:1", limit: "10m"},
		"silent":  {address: listener.Addr().String(), limit: "1s"},
	} {
		for broker, url := range unreachable(c.address) {
			t.Run(name+" "+broker, func(t *testing.T) {
				t.Parallel()
				start := time.Now()
				config := configOf("sqlite://"+filepath.Join(t.TempDir(), "dlq.db"), map[string]string{"b": url})
				code, found := diagnose(t, config, "--timeout", c.limit)
				require.Less(t, time.Since(start), await.Patience)
				require.Equal(t, 1, code)
				require.Equal(t, "problem", found["broker b"].Severity)
				require.Contains(t, found["broker b"].Remedy, "is the server running", found["broker b"].Finding)
				require.NotContains(t, found["broker b"].Finding, "s3cret")
			})
		}
	}
}
