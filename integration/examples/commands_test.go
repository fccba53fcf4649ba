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

// commands returns all commands of the README and docs, each once.
func commands(t *testing.T) (found []command) {
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
					if !slices.ContainsFunc(found, func(f command) bool {
						return f.line == c.line && slices.Equal(f.exported, c.exported)
					}) {
						found = append(found, c)
					}
				}
			}
		}
	}
	return found
}

// ours are the servers that replace those named in the documents. Each line, or each block that exports its URLs, gets
// new databases and virtual hosts.
type ours struct {
	t        *testing.T
	kafka    *services.KafkaServer // not the one with other tests' topics
	exported map[string]string
}

// script returns the shell script for c.
func (o *ours) script(c command) string {
	var lines []string
	for _, line := range c.exported {
		key := c.page + line
		if o.exported[key] == "" {
			o.exported[key] = o.place(line)
		}
		lines = append(lines, o.exported[key])
	}
	return strings.Join(append(lines, o.place(c.line)), "\n")
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
		if o.kafka == nil {
			o.kafka = services.Kafka(o.t, services.KafkaConfig{})
		}
		return o.kafka.URL()
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
	prints := map[string][]string{
		"orders":    {chargeLine, loyaltyLine},
		"employees": counts,
		"bus":       {`invoice-service\s+6\s+2\s+1\s+1\s+2\s+7`, `mailer\s+7\s+5\s+0\s+0\s+2\s+7`},
	}
	all := commands(t)
	require.GreaterOrEqual(t, len(all), 14, "the documents have fewer commands than expected")
	dir, o := checkout(t), &ours{t: t, exported: map[string]string{}}
	for _, c := range all {
		t.Run(c.page+" "+c.line, func(t *testing.T) {
			_, example, _ := strings.Cut(c.line, "./examples/")
			example, arguments, _ := strings.Cut(example, " ")
			require.Contains(t, prints, example)
			script, want := o.script(c), prints[example]
			if strings.HasPrefix(arguments, "-fix") {
				want = []string{`(?m)^EMP-\d+ is RESOLVED after 1 redrive`}
			}
			var stdout, stderr bytes.Buffer
			cmd := exec.CommandContext(t.Context(), "sh", "-ec", script)
			cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &stdout, &stderr
			cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return setURL.MatchString(v) })
			defer tidy(t, dir)
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
		})
	}
}

// tidy removes a program's files from the checkout.
func tidy(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		if e.Type()&os.ModeSymlink == 0 {
			require.NoError(t, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
}
