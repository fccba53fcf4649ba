package redrive_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/redrive-go/redrive"

type pkg struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

// list asks the go command for packages, without their tests.
func list(t *testing.T, patterns ...string) []pkg {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Imports,Deps"}, patterns...)...).Output()
	require.NoError(t, err)
	var found []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		found = append(found, p)
	}
	require.NotEmpty(t, found)
	return found
}

// part is the top-level folder of one of our packages, "" for a package of somebody else.
func part(path string) string {
	rest, ours := strings.CutPrefix(path, module+"/")
	if !ours {
		return ""
	}
	first, _, _ := strings.Cut(rest, "/")
	return first
}

// The parts meet in the user's main: none of them may know another one. A conformance suite drives a broker through the
// pipeline, so it knows both.
func TestImports_Direction(t *testing.T) {
	allowed := map[string][]string{
		"envelope":    {"envelope"},
		"middleware":  {"middleware", "envelope"},
		"brokers":     {"brokers", "envelope"},
		"dlq":         {"dlq", "envelope"},
		"idempotency": {"idempotency", "envelope"},
		"internal":    {"internal"},
	}
	exceptions := map[string][]string{
		"brokers/brokertest": {"middleware"},
	}
	for _, p := range list(t, "./...") {
		may, core := allowed[part(p.ImportPath)]
		if !core {
			continue
		}
		may = append(append(slices.Clone(may), "internal"), exceptions[strings.TrimPrefix(p.ImportPath, module+"/")]...)
		for _, dep := range p.Deps {
			if of := part(dep); of != "" {
				require.Contains(t, may, of, "%s imports %s", p.ImportPath, dep)
			}
		}
	}
}

// Clients of brokers and databases, and everything else that is heavy, are compiled by those who use them alone.
func TestImports_Weight(t *testing.T) {
	const (
		amqp       = "github.com/rabbitmq/amqp091-go"
		sarama     = "github.com/IBM/sarama"
		kafka      = "github.com/ThreeDotsLabs/watermill-kafka"
		franz      = "github.com/twmb/franz-go"
		builder    = "github.com/huandu/go-sqlbuilder"
		goose      = "github.com/pressly/goose"
		pgx        = "github.com/jackc/pgx"
		mysql      = "github.com/go-sql-driver"
		sqlite     = "modernc.org/sqlite"
		prometheus = "github.com/prometheus"
		otel       = "go.opentelemetry.io"
		yaml       = "github.com/goccy/go-yaml"
		huma       = "github.com/danielgtaylor/huma"
		testify    = "github.com/stretchr/testify"
	)
	drivers := []string{pgx, mysql, sqlite}
	light := append([]string{amqp, sarama, kafka, franz, builder, goose, prometheus, otel, yaml, huma, testify, "database/sql"}, drivers...)
	for pattern, heavy := range map[string][]string{
		"./envelope":                   append([]string{"net/http", "github.com/failsafe-go"}, light...),
		"./middleware":                 slices.DeleteFunc(slices.Clone(light), func(s string) bool { return s == "database/sql" }), // for its errors
		"./brokers":                    light,
		"./dlq/dlqmetrics":             append([]string{amqp, sarama, kafka, otel, yaml, huma, testify}, drivers...),
		"./middleware/tracing":         append([]string{amqp, sarama, kafka, builder, goose, prometheus, yaml, huma, testify, "go.opentelemetry.io/otel/sdk"}, drivers...),
		"./middleware/pipelinemetrics": append([]string{amqp, sarama, kafka, builder, goose, otel, yaml, huma, testify}, drivers...),
		"./brokers/memory":             light,
		"./brokers/rabbitmq":           append([]string{sarama, builder, goose, prometheus, otel, testify}, drivers...),
		"./brokers/kafka":              append([]string{amqp, builder, goose, prometheus, otel, testify}, drivers...),
		"./brokers/sqlqueue":           append([]string{amqp, sarama, prometheus, otel, testify}, drivers...),
		"./dlq":                        append([]string{amqp, sarama, builder, goose, prometheus, otel, testify}, drivers...),
		"./dlq/dlqhttp":                append([]string{amqp, sarama, builder, goose, prometheus, otel, testify}, drivers...),
		"./dlq/sqlstore":               append([]string{amqp, sarama, prometheus, otel, testify}, drivers...),
	} {
		t.Run(strings.TrimPrefix(pattern, "./"), func(t *testing.T) {
			for _, p := range list(t, pattern) {
				for _, dep := range p.Deps {
					for _, h := range heavy {
						within := strings.Contains(h, ".") && strings.HasPrefix(dep, h+"/") // a module, not a standard package
						require.False(t, dep == h || within, "%s compiles %s", p.ImportPath, dep)
					}
				}
			}
		})
	}
}

// The envelope is what every service shares: it stays as small as this.
func TestImports_EnvelopeKnowsOnlyWatermillAndUUID(t *testing.T) {
	for _, p := range list(t, "./envelope") {
		for _, dep := range p.Imports {
			if strings.Contains(dep, ".") && part(dep) == "" {
				require.Contains(t, []string{"github.com/ThreeDotsLabs/watermill/message", "github.com/google/uuid"}, dep)
			}
		}
	}
}
