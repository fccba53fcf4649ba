package examples_test

import (
	"crypto/rand"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/all"
)

// The table in docs/brokers matches the capabilities that each broker reports.
func TestDocs_CapabilitiesTable(t *testing.T) {
	t.Parallel()
	columns := []string{"memory", "RabbitMQ", "Kafka", "NATS", "PostgreSQL", "MariaDB", "MySQL", "SQLite"}
	have := map[string]brokers.Capabilities{}
	patterns := map[string]bool{}
	for _, name := range columns {
		url := brokerURLs[name](t)
		have[name] = capabilities(t, brokers.Config{URL: url}).Capabilities
		bus := capabilities(t, brokers.Config{URL: url, Group: "docs", Naming: brokers.ServiceBus("docs")})
		patterns[name] = bus.err == nil && bus.Patterns
	}

	rows := []struct {
		title string
		cell  func(name string, c brokers.Capabilities) string
	}{
		{"keeps messages over restarts", func(_ string, c brokers.Capabilities) string { return yes(c.Durable) }},
		{"order, with one handler and no failure", func(_ string, c brokers.Capabilities) string { return yes(c.Ordered) }},
		{"several groups on one topic", func(_ string, c brokers.Capabilities) string { return yes(c.Groups) }},
		{"topic patterns (`invoice.*`)", func(name string, _ brokers.Capabilities) string { return yes(patterns[name]) }},
		{"publish in your transaction", func(_ string, c brokers.Capabilities) string { return yes(c.Transactions) }},
		{"counts crashes of the consumer", func(_ string, c brokers.Capabilities) string { return yes(c.DeliveryCount) }},
		{"longest delay", func(_ string, c brokers.Capabilities) string { return delay(c.MaxDelay) }},
		{"late by at most", func(_ string, c brokers.Capabilities) string {
			return fmt.Sprint(c.DelayTolerance.Milliseconds(), " ms")
		}},
		{"largest message", func(_ string, c brokers.Capabilities) string { return size(c.MaxMessageBytes) }},
	}
	var table strings.Builder
	table.WriteString("| | " + strings.Join(columns, " | ") + " |\n|---" + strings.Repeat("|---", len(columns)) + "|\n")
	for _, row := range rows {
		cells := []string{row.title}
		for _, name := range columns {
			cells = append(cells, row.cell(name, have[name]))
		}
		table.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "brokers", "README.md"))
	require.NoError(t, err)
	require.Contains(t, string(page), table.String(), "the table must be:\n%s", table.String())
}

// The second table does the same for Watermill's own adapters.
func TestDocs_WatermillsAdapters(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "brokers", "README.md"))
	require.NoError(t, err)
	columns := []string{"watermill-amqp", "watermill-kafka", "watermill-sql", "gochannel"}
	rows := map[string]func(c brokers.Capabilities) bool{
		"keeps messages over restarts":           func(c brokers.Capabilities) bool { return c.Durable },
		"order, with one handler and no failure": func(c brokers.Capabilities) bool { return c.Ordered },
		"several groups on one topic":            func(c brokers.Capabilities) bool { return c.Groups },
		"topic patterns (`invoice.*`)":           func(c brokers.Capabilities) bool { return c.Patterns },
		"counts crashes of the consumer":         func(c brokers.Capabilities) bool { return c.DeliveryCount },
	}
	lines := map[string]string{}
	for _, name := range columns {
		c := capabilities(t, brokers.Config{URL: brokerURLs[name](t)})
		require.NoError(t, c.err)
		for title, able := range rows {
			lines[title] += " " + yes(able(c.Capabilities)) + " |"
		}
	}
	require.Contains(t, string(page), "| | "+strings.Join(columns, " | ")+" |")
	for title, cells := range lines {
		require.Contains(t, string(page), "| "+title+" |"+cells+"\n")
	}
}

// The first program of the README runs on a server as the page says: with another URL and import.
func TestREADME_ProgramOnServers(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	require.NoError(t, err)
	_, program, _ := strings.Cut(string(page), "```go\npackage main\n")
	program, _, _ = strings.Cut(program, "```\n")
	for name, server := range map[string]struct{ driver, query string }{
		"RabbitMQ": {"rabbitmq", ""}, "Kafka": {"kafka", "?group=mailer"}, "NATS": {"nats", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, _, _ := strings.Cut(brokerURLs[name](t), "?")
			main := filepath.Join(t.TempDir(), "main.go")
			source := strings.NewReplacer(`"mem://"`, strconv.Quote(url+server.query), `brokers/memory"`,
				"brokers/"+server.driver+`"`, `"orders"`, strconv.Quote("orders"+strings.ToLower(rand.Text())),
			).Replace("package main\n" + program) // other tests of the server have a topic orders
			require.NoError(t, os.WriteFile(main, []byte(source), 0o600))
			for range 2 { // the first leaves nothing behind
				command := exec.CommandContext(t.Context(), "go", "run", main)
				command.Dir, command.Stderr = filepath.Join("..", ".."), t.Output()
				out, err := command.Output()
				require.NoError(t, err)
				require.Equal(t, "order 4711: attempt 1 of 4\norder 4711: attempt 2 of 4\n", string(out))
			}
		})
	}
}

type opened struct {
	brokers.Capabilities
	err error
}

func capabilities(t *testing.T, cfg brokers.Config) opened {
	t.Helper()
	b, err := brokers.OpenConfig(t.Context(), cfg)
	if err != nil {
		require.ErrorIs(t, err, brokers.ErrUnsupported)
		return opened{err: err}
	}
	defer func() { require.NoError(t, b.Close()) }()
	return opened{b.Capabilities(), nil}
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "-"
}

func delay(d time.Duration) string {
	if d == math.MaxInt64 {
		return "any"
	}
	return fmt.Sprint(int(d/(24*time.Hour)), " days")
}

func size(bytes int64) string {
	if bytes == 0 {
		return "memory"
	}
	if bytes < 1<<20 {
		return fmt.Sprint(bytes>>10, " KiB")
	}
	return fmt.Sprint(bytes>>20, " MiB")
}
