package sourcetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/redrive-go/redrive"

type pkg struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

// packages returns the packages of this module without their tests. The go command takes half a second to list them, so
// this happens once.
var packages = sync.OnceValues(func() (found []pkg, err error) {
	cmd := exec.CommandContext(context.Background(), "go", "list", "-json=ImportPath,Imports,Deps", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return found, nil
		} else if err != nil {
			return nil, err
		}
		found = append(found, p)
	}
})

// list returns the packages that match any of the patterns: ./name, or ./name/... with those below it.
func list(t *testing.T, patterns ...string) []pkg {
	t.Helper()
	all, err := packages()
	require.NoError(t, err)
	var found []pkg
	for _, pattern := range patterns {
		name, below := strings.CutSuffix(path.Join(module, pattern), "/...")
		before := len(found)
		for _, p := range all {
			if p.ImportPath == name || below && strings.HasPrefix(p.ImportPath, name+"/") {
				found = append(found, p)
			}
		}
		require.Greater(t, len(found), before, "%s matches no package", pattern)
	}
	return found
}

// part returns the top-level folder of one of our packages, "" for a foreign package.
func part(path string) string {
	rest, ours := strings.CutPrefix(path, module+"/")
	if !ours {
		return ""
	}
	first, _, _ := strings.Cut(rest, "/")
	return first
}

// The parts meet in the user's main, so none may import another. A conformance suite drives a broker through the
// pipeline, so it imports both.
func TestImports_Direction(t *testing.T) {
	allowed := map[string][]string{
		"envelope":   {"envelope"},
		"middleware": {"middleware", "envelope"},
		"brokers":    {"brokers", "envelope"},
		"dlq":        {"dlq", "envelope"},
		"internal":   {"internal"},
	}
	exceptions := map[string][]string{
		"brokers/brokertest": {"middleware"},
		"dlq/live":           {"middleware"},                 // observes a pipeline, reports to a store
		"internal/config":    {"brokers", "dlq", "envelope"}, // of the command, which has all of them
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

// Only programs that use them compile the clients of brokers and databases, and other heavy dependencies.
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
		nats       = "github.com/nats-io"
	)
	drivers := []string{pgx, mysql, sqlite}
	light := append([]string{
		amqp, sarama, kafka, franz, nats, builder, goose, prometheus, otel, yaml, huma, testify, "database/sql",
	}, drivers...)
	for pattern, heavy := range map[string][]string{
		"./envelope": append([]string{"net/http", "github.com/failsafe-go"}, light...),
		// for its errors
		"./middleware":     slices.DeleteFunc(slices.Clone(light), func(s string) bool { return s == "database/sql" }),
		"./brokers":        light,
		"./dlq/dlqmetrics": append([]string{nats, amqp, sarama, kafka, otel, yaml, huma, testify}, drivers...),
		"./middleware/tracing": append([]string{
			nats, amqp, sarama, kafka, builder, goose, prometheus, yaml, huma, testify, "go.opentelemetry.io/otel/sdk",
		}, drivers...),
		"./middleware/pipelinemetrics": append([]string{nats, amqp, sarama, kafka, builder, goose, otel, yaml, huma, testify},
			drivers...),
		"./brokers/memory": light,
		"./brokers/nats": append([]string{amqp, sarama, franz, builder, goose, prometheus, otel, testify},
			drivers...),
		"./brokers/rabbitmq": append([]string{nats, sarama, builder, goose, prometheus, otel, testify}, drivers...),
		"./brokers/kafka": append([]string{nats, amqp, sarama, builder, goose, prometheus, otel, testify},
			drivers...),
		"./brokers/sqlqueue": append([]string{nats, amqp, sarama, prometheus, otel, testify}, drivers...),
		"./dlq": append([]string{nats, amqp, sarama, builder, goose, prometheus, otel, testify},
			drivers...),
		"./dlq/wire":   append([]string{"net/http", "github.com/ThreeDotsLabs"}, light...),
		"./dlq/client": append([]string{"github.com/ThreeDotsLabs"}, light...),
		"./dlq/dlqhttp": append([]string{nats, amqp, sarama, builder, goose, prometheus, otel, testify},
			drivers...),
		"./dlq/sqlstore": append([]string{nats, amqp, sarama, prometheus, otel, testify}, drivers...),
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

// Only the broker on NATS imports its client, and nothing that is released compiles the server.
func TestImports_NATS(t *testing.T) {
	const client, server = "github.com/nats-io/nats.go", "github.com/nats-io/nats-server"
	for _, p := range list(t, "./...") {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		for _, dep := range p.Deps {
			require.False(t, strings.HasPrefix(dep, server), "%s compiles the server", name)
		}
		for _, dep := range p.Imports {
			require.False(t, strings.HasPrefix(dep, client) && name != "brokers/nats", "%s imports %s", name, dep)
		}
	}
}

// Every service imports the envelope, so it stays this small.
func TestImports_EnvelopeKnowsOnlyWatermillAndUUID(t *testing.T) {
	for _, p := range list(t, "./envelope") {
		for _, dep := range p.Imports {
			if strings.Contains(dep, ".") && part(dep) == "" {
				require.Contains(t, []string{watermills, watermills + "/message", "github.com/google/uuid"}, dep)
			}
		}
	}
}

const watermills = "github.com/ThreeDotsLabs/watermill"

// leaves are the packages that build on Watermill's own adapters.
var leaves = map[string]string{
	"brokers/watermill/amqp":  watermills + "-amqp/v2/pkg/amqp",
	"brokers/watermill/kafka": watermills + "-kafka/v3/pkg/kafka",
	"brokers/watermill/sql":   watermills + "-sql/v3/pkg/sql",
}

// Each of Watermill's own adapters is imported by one package of ours, and compiled otherwise only by programs that
// open any URL.
func TestImports_WatermillsAdapters(t *testing.T) {
	const theirs = watermills + "-"
	compiled := map[string]bool{}
	for _, p := range list(t, "./...") {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		if adapter, ok := leaves[name]; ok {
			require.Contains(t, p.Imports, adapter, name)
			compiled[name] = true
			continue
		}
		for _, dep := range p.Imports {
			require.False(t, strings.HasPrefix(dep, theirs), "%s imports %s", name, dep)
		}
	}
	require.Len(t, compiled, len(leaves))
	light := []string{
		"./brokers/watermill", "./brokers/watermill/gochannel", "./brokers/memory", "./brokers/rabbitmq", "./brokers/kafka",
		"./brokers/sqlqueue",
		"./middleware", "./dlq/...",
	}
	for _, p := range list(t, light...) {
		for _, dep := range p.Deps {
			require.False(t, strings.HasPrefix(dep, theirs), "%s compiles %s", p.ImportPath, dep)
		}
	}
	// Each leaf compiles one of them.
	for _, p := range list(t, "./brokers/watermill/amqp", "./brokers/watermill/kafka", "./brokers/watermill/sql") {
		for _, dep := range p.Deps {
			if strings.HasPrefix(dep, theirs) {
				require.Equal(t, leaves[strings.TrimPrefix(p.ImportPath, module+"/")], dep, p.ImportPath)
			}
		}
	}
}

// go.mod requires the six modules that this one is built on, and users run them: in the command, which opens any broker
// URL, or, for testify, in the conformance suites.
func TestImports_BuiltOnWatermill(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	direct, _, found := strings.Cut(string(mod), "\n)\n") // the first block has what is not indirect
	require.True(t, found)
	for required, use := range map[string]struct{ by, pkg string }{
		watermills:                    {"./cmd/redrive", watermills + "/message"},
		watermills + "-amqp/v2":       {"./cmd/redrive", leaves["brokers/watermill/amqp"]},
		watermills + "-kafka/v3":      {"./cmd/redrive", leaves["brokers/watermill/kafka"]},
		watermills + "-sql/v3":        {"./cmd/redrive", leaves["brokers/watermill/sql"]},
		"github.com/google/uuid":      {"./envelope", "github.com/google/uuid"},
		"github.com/stretchr/testify": {"./brokers/brokertest", "github.com/stretchr/testify/require"},
	} {
		require.Regexp(t, `(?m)^\t`+regexp.QuoteMeta(required)+` v\S+$`, direct, "go.mod")
		for _, p := range list(t, use.by) {
			require.Contains(t, p.Deps, use.pkg, "%s does not use %s", use.by, required)
		}
	}
}
