package examples_test

import (
	"bytes"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/natsserver"
	"github.com/redrive-go/redrive/integration/services"
)

// pluginDir names a directory with RabbitMQ's plugin for delayed messages, which is in no package.
const pluginDir = "TEST_DELAYED_PLUGIN_DIR"

// command is a line of a console block that runs an example with a broker's or a store's URL.
type command struct {
	page, line string
	exported   []string // lines of its block before it that set the URLs
}

var (
	consoleBlock = regexp.MustCompile("(?s)```console\n(.*?)```")
	runsExample  = regexp.MustCompile(`go run (-tags \S+ )?\./examples/`)
	setURL       = regexp.MustCompile(`\b(BROKER_URL|DLQ_URL)=('[^']*'|\S+)`)
)

// commands returns all commands of the README and docs, each once. Those of one block that exports URLs are together.
func commands(t *testing.T) (found [][]command) {
	t.Helper()
	pages, err := filepath.Glob(filepath.Join("..", "..", "*.md"))
	require.NoError(t, err)
	for _, depth := range []string{"*.md", filepath.Join("*", "*.md")} {
		deeper, err := filepath.Glob(filepath.Join("..", "..", "docs", depth))
		require.NoError(t, err)
		pages = append(pages, deeper...)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, block := range consoleBlock.FindAllStringSubmatch(string(text), -1) {
			var exported []string
			for line := range strings.Lines(block[1]) {
				line, typed := strings.CutPrefix(strings.TrimSpace(line), "$ ")
				switch {
				case !typed:
				// runs until it is stopped; the tests of package migrate type it
				case strings.Contains(line, "./examples/migrate/"):
				case strings.HasPrefix(line, "export "):
					exported = append(exported, line)
				case runsExample.MatchString(line) && (len(exported) > 0 || setURL.MatchString(line)):
					c := command{filepath.Base(page), line, slices.Clone(exported)}
					last := len(found) - 1
					switch {
					case slices.ContainsFunc(slices.Concat(found...), func(f command) bool {
						return f.line == c.line && slices.Equal(f.exported, c.exported)
					}):
					case len(exported) > 0 && last >= 0 && found[last][0].page == c.page &&
						slices.Equal(found[last][0].exported, exported):
						found[last] = append(found[last], c)
					default:
						found = append(found, []command{c})
					}
				}
			}
		}
	}
	return found
}

// ours are the servers that replace those named in a block of the documents. The block gets new databases and virtual
// hosts.
type ours struct {
	t     *testing.T
	kafka func() *services.KafkaServer // not the one with other tests' topics
}

// scripts returns a shell script for each command of a block.
func (o *ours) scripts(block []command) (scripts []string) {
	var exported []string
	for _, line := range block[0].exported {
		exported = append(exported, o.place(line))
	}
	for _, c := range block {
		scripts = append(scripts, strings.Join(append(slices.Clone(exported), o.place(c.line)), "\n"))
	}
	return scripts
}

// place replaces the servers in a line with ours, and keeps the rest.
func (o *ours) place(line string) string {
	return setURL.ReplaceAllStringFunc(line, func(set string) string {
		name, raw, _ := strings.Cut(set, "=")
		named, err := url.Parse(strings.Trim(raw, "'"))
		require.NoError(o.t, err)
		if named.Scheme == "sqlite" && named.Host != "" {
			return set // a file in the working directory
		}
		at, err := url.Parse(o.server(named))
		require.NoError(o.t, err)
		parameters := at.Query()
		maps.Copy(parameters, named.Query())
		at.Scheme, at.RawQuery = named.Scheme, parameters.Encode()
		if name == "BROKER_URL" {
			return name + "='" + patient(at.String()) + "'"
		}
		return name + "='" + at.String() + "'"
	})
}

func (o *ours) server(named *url.URL) string {
	switch strings.TrimPrefix(named.Scheme, "watermill+") {
	case "nats":
		return natsserver.Start(o.t).URL()
	case "amqp":
		if dir := os.Getenv(pluginDir); dir != "" && named.Query().Get("transport") == "plugin" {
			return services.RabbitMQ(o.t, services.RabbitConfig{
				Plugins:    []string{"rabbitmq_delayed_message_exchange"},
				PluginsDir: dir,
			}).URL
		}
		return services.SharedRabbitMQ(o.t).VHost(o.t)
	case "kafka":
		return o.kafka().URL()
	case "postgres":
		return services.SharedPostgres(o.t).Database(o.t)
	case "mysql", "mariadb":
		return services.SharedMariaDB(o.t).Database(o.t)
	case "sqlite":
		return "sqlite://" + filepath.Join(o.t.TempDir(), filepath.Base(named.Path))
	}
	require.Fail(o.t, "there is no server for "+named.Scheme)
	return ""
}

// checkout returns a fresh copy of the repository in a separate directory, so that programs create no files in ours.
func checkout(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	entries, err := os.ReadDir(root)
	require.NoError(t, err)
	dir := t.TempDir()
	for _, e := range entries {
		require.NoError(t, os.Symlink(filepath.Join(root, e.Name()), filepath.Join(dir, e.Name())))
	}
	return dir
}

// The commands in the documents work as written, except for the addresses of servers, and print the same numbers as in
// memory.
func TestDocs_CommandsWithURLs(t *testing.T) {
	t.Parallel()
	prints := map[string][]string{
		"orders":    {chargeLine, loyaltyLine},
		"employees": counts,
		"bus":       {`invoice-service\s+6\s+2\s+1\s+1\s+2\s+7`, `mailer\s+7\s+5\s+0\s+0\s+2\s+7`},
	}
	blocks := commands(t)
	require.GreaterOrEqual(t, len(slices.Concat(blocks...)), 14, "the documents have fewer commands than expected")
	var started *services.KafkaServer
	kafka := &kafkaServer{server: func(testing.TB) *services.KafkaServer { // called with the lock
		if started == nil {
			started = services.Kafka(t, services.KafkaConfig{})
		}
		return started
	}}
	for _, block := range blocks {
		t.Run(block[0].page+" "+block[0].line, func(t *testing.T) {
			t.Parallel()
			o := &ours{t, sync.OnceValue(func() *services.KafkaServer { return kafka.forTest(t) })}
			for i, script := range o.scripts(block) {
				c := block[i]
				_, example, _ := strings.Cut(c.line, "./examples/")
				example, arguments, _ := strings.Cut(example, " ")
				require.Contains(t, prints, example)
				want := prints[example]
				if strings.HasPrefix(arguments, "-fix") {
					want = []string{`(?m)^EMP-\d+ is RESOLVED after 1 redrive`}
				}
				typed(t, c, script, want)
			}
		})
	}
}

// typed runs the script of a command, which must print the wanted lines.
func typed(t *testing.T, c command, script string, want []string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", script)
	cmd.Dir, cmd.Stdout, cmd.Stderr = checkout(t), &stdout, &stderr
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return setURL.MatchString(v) })
	cmd.Env = append(cmd.Env, "GOFLAGS="+os.Getenv("GOFLAGS")+" -trimpath") // compiles once for all checkouts
	err := cmd.Run()
	if strings.Contains(c.line, "transport=plugin") && os.Getenv(pluginDir) == "" {
		// A plain RabbitMQ has no exchange of that type, and the error names the remedy.
		require.Error(t, err, stdout.String())
		require.Contains(t, stderr.String(), "rabbitmq-plugins enable rabbitmq_delayed_message_exchange")
		return
	}
	require.NoError(t, err, "%s\n%s%s", script, stdout.String(), stderr.String())
	for _, line := range want {
		require.Regexp(t, line, stdout.String())
	}
}
