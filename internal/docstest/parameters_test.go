package docstest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
)

var update = flag.Bool("update", false, "write docs/parameters.md")

// parameters.md is generated from what the drivers declare: go test ./internal/docstest -update writes it.
func TestParameters(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Parameters of broker URLs

Every driver understands the common parameters that the package documentation of brokers lists: group, concurrency,
naming and so on. These are what each driver adds. They are written x-name, or without x- where the third column allows
it; in a configuration they are listed under params, without x-. This page is generated from the drivers: go test
./internal/docstest -update.
`)
	for _, d := range []struct{ title, scheme string }{
		{"In memory, mem", "mem"},
		{"RabbitMQ, amqp and amqps", "amqp"},
		{"Kafka, kafka", "kafka"},
		{"NATS, nats and nats+tls", "nats"},
		{"SQL, postgres, mysql, mariadb and sqlite", "postgres"},
		{"watermill-amqp, watermill+amqp and watermill+amqps", "watermill+amqp"},
		{"watermill-kafka, watermill+kafka", "watermill+kafka"},
		{"watermill-sql, watermill+postgres, watermill+mysql and watermill+mariadb", "watermill+postgres"},
		{"gochannel", "gochannel"},
	} {
		opener, ok := brokers.Lookup(d.scheme)
		require.True(t, ok, d.scheme)
		params := opener.Params()
		foreign := false
		for _, p := range params {
			if p.Name == driver.NackPause().Name {
				require.Equal(t, driver.NackPause(), p, "%s: one parameter of all drivers", d.scheme)
			}
			foreign = foreign || p.Native && p.Name == "*"
		}
		fmt.Fprintf(&b, "\n## %s\n\n| parameter | default | in the URL | meaning |\n|---|---|---|---|\n", d.title)
		for _, p := range params {
			switch {
			case p.Name == "*" && !p.Native:
				fmt.Fprintf(&b, "| any other | | | %s |\n", p.Doc)
			case p.Name == "*":
				fmt.Fprintf(&b, "| any other | | `name` | %s |\n", p.Doc)
			case p.Native:
				fmt.Fprintf(&b, "| `%s` | | `%s` | %s |\n", p.Name, p.Name, p.Doc)
			case foreign:
				fmt.Fprintf(&b, "| `%s` | %s | `x-%s` | %s |\n", p.Name, p.Default, p.Name, meaning(p))
			default:
				fmt.Fprintf(&b, "| `%s` | %s | `%s` | %s |\n", p.Name, p.Default, p.Name, meaning(p))
			}
		}
	}
	if *update {
		require.NoError(t, os.WriteFile(filepath.Join(root, "docs", "parameters.md"), []byte(b.String()), 0o600))
	}
	have, err := os.ReadFile(filepath.Join(root, "docs", "parameters.md"))
	require.NoError(t, err)
	require.Equal(t, b.String(), string(have), "update it: go test ./internal/docstest -update")
}

func meaning(p brokers.Param) string {
	if len(p.OneOf) == 0 {
		return p.Doc
	}
	return p.Doc + " One of " + strings.Join(p.OneOf, ", ") + "."
}
