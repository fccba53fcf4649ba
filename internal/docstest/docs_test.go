// Package docstest checks the documentation against the code: what README.md and docs show is run, compiled or looked
// up here.
package docstest

import (
	"database/sql"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/all"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
)

const root = "../.." // of the module

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // handlers fail here by design
	var err error
	if scratch, err = os.MkdirTemp("", "redrive-docs-"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(scratch)
	os.Exit(code)
}

// scratch is a directory that all tests share.
var scratch string

// page is a file of the documentation.
type page struct {
	path string // from the root
	text string
}

func pages(t *testing.T) []page {
	t.Helper()
	paths := []string{"README.md", "SECURITY.md"}
	require.NoError(t, fs.WalkDir(os.DirFS(root), "docs", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".md") {
			paths = append(paths, path)
		}
		return err
	}))
	require.Greater(t, len(paths), 5)
	var all []page
	for _, path := range paths {
		text, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)
		all = append(all, page{path, string(text)})
	}
	return all
}

var fence = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")

// blocks are the fenced blocks of a language.
func (p page) blocks(language string) (found []string) {
	for _, m := range fence.FindAllStringSubmatch(p.text, -1) {
		if m[1] == language {
			found = append(found, m[2])
		}
	}
	return found
}

// Every block has a language, and every language except that of diagrams has a test.
func TestDocs_NoBlockIsUnattended(t *testing.T) {
	for _, p := range pages(t) {
		require.Zero(t, strings.Count(p.text, "```")%2, p.path)
		for _, block := range p.blocks("json") {
			_, err := envelope.FromMessage(message.NewMessage("", []byte(block)))
			require.NoError(t, err, p.path)
			require.Contains(t, block, `"message_id"`, "JSON in these pages is an envelope")
		}
		for _, m := range fence.FindAllStringSubmatch(p.text, -1) {
			require.Contains(t, []string{"go", "console", "sql", "json", "yaml", "mermaid", "text", ""}, m[1], p.path)
			if m[1] == "" && p.path != "docs/command.md" { // cmd/redrive makes that page of its help
				t.Errorf("%s: add a language, so that a test checks it: %s", p.path, m[2])
			}
			if m[1] != "console" {
				continue
			}
			for line := range strings.Lines(m[2]) { // no test would check a command's output
				require.True(t, strings.HasPrefix(line, "$ ") || strings.HasPrefix(line, "  "), "%s: not a command: %s", p.path,
					line)
			}
		}
	}
}

// Every Go snippet is copied, line for line, from a source file that tests compile and run. So is what a program
// prints: it is the output of an example.
func TestDocs_SnippetsAreInTheSources(t *testing.T) {
	var sources strings.Builder
	for _, dir := range []string{"internal/docstest", "examples"} {
		require.NoError(t, fs.WalkDir(os.DirFS(root), dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") {
				return err
			}
			text, err := os.ReadFile(filepath.Join(root, path))
			sources.WriteString(flat(string(text)))
			return err
		}))
	}
	for _, p := range pages(t) {
		for _, snippet := range append(p.blocks("go"), p.blocks("text")...) {
			if p.path == "README.md" && strings.HasPrefix(snippet, "order 4711") {
				continue // TestREADME_Program
			}
			if !strings.Contains(sources.String(), flat(snippet)) {
				t.Errorf("%s: put it into internal/docstest or an example first:\n%s", p.path, snippet)
			}
		}
	}
}

// flat returns text without indentation, comment markers and blank lines.
func flat(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "// ")); line != "" {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// Every command names an existing program, make target or profile, and uses only flags that exist. What the programs do
// is tested next to them.
func TestDocs_CommandsExist(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	compose, err := os.ReadFile(filepath.Join(root, "docker-compose.yml"))
	require.NoError(t, err)
	for _, p := range pages(t) {
		for _, block := range p.blocks("console") {
			for line := range strings.Lines(block) {
				command, ok := strings.CutPrefix(strings.TrimSpace(line), "$ ")
				if !ok {
					continue
				}
				command, _, _ = strings.Cut(command, " #")
				words := strings.Fields(command)
				for len(words) > 0 && strings.Contains(words[0], "_URL=") {
					words = words[1:]
				}
				if len(words) > 4 && words[2] == "-tags" {
					require.Regexp(t, "^((amqp|kafka|nats|postgres|mysql|watermill),?)+$", words[3], "%s: %s", p.path, line)
					words = slices.Delete(words, 2, 4)
				}
				switch {
				case words[0] == "export":
				case p.path == "README.md" && (strings.HasPrefix(command, "go get ") || strings.TrimSpace(command) == "go run ."):
					// TestREADME_Program
				case strings.HasPrefix(command, "go install "):
					require.DirExists(t, filepath.Join(root,
						strings.TrimSuffix(strings.TrimPrefix(words[2], "github.com/redrive-go/redrive/"), "@latest")))
				case p.path == "docs/getting-started.md" && !strings.HasPrefix(command, "redrive "): // TestGettingStarted
				case words[0] == "curl" && p.path == "docs/api.md": // TestAPI_Examples sends them
				case words[0] == "make" && len(words) == 2:
					require.Contains(t, string(makefile), "\n"+words[1]+": ##", "%s: %s", p.path, line)
				case strings.HasPrefix(command, "docker compose --profile "):
					require.Contains(t, string(compose), "profiles: ["+words[3]+"]", "%s: %s", p.path, line)
				case words[0] == "go" && words[1] == "run" && strings.HasPrefix(words[2], "./examples/"):
					require.FileExists(t, filepath.Join(root, words[2], "main.go"), "%s: %s", p.path, line)
					for _, word := range words[3:] {
						if strings.HasPrefix(word, "-") {
							source, err := os.ReadFile(filepath.Join(root, words[2], "main.go"))
							require.NoError(t, err)
							require.Regexp(t, `flags\.\w+\([^"\n]*"`+strings.TrimLeft(word, "-")+`"`, string(source), "%s: %s", p.path, line)
						}
					}
				case words[0] == "redrive": // TestDocs_RedriveCommandsRun
				case strings.HasPrefix(command, "go run ./cmd/redrive demo"): // its own tests run it
				default:
					t.Errorf("%s: no test knows this command: %s", p.path, line)
				}
			}
		}
	}
}

var urls = regexp.MustCompile("(?:amqps?|kafka|postgres|mysql|mariadb|sqlite|mem)://[^\\s`'\")|]*")

// Every broker URL has a driver, which knows all its parameters.
func TestDocs_URLsAreUnderstood(t *testing.T) {
	seen := 0
	for _, p := range pages(t) {
		for _, text := range urls.FindAllString(p.text, -1) {
			if strings.HasSuffix(text, "://...") || strings.HasSuffix(text, "://") && text != "mem://" {
				continue // the scheme is meant
			}
			u, err := url.Parse(text)
			require.NoError(t, err, p.path)
			driver, ok := brokers.Lookup(u.Scheme)
			require.True(t, ok, "%s: %s", p.path, text)
			_, err = brokers.Config{URL: text}.Resolve(driver.Params())
			require.NoError(t, err, "%s: %s", p.path, text)
			seen++
		}
	}
	require.Greater(t, seen, 5)
}

var links = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)

func TestDocs_LinksLeadSomewhere(t *testing.T) {
	for _, p := range pages(t) {
		for _, m := range links.FindAllStringSubmatch(p.text, -1) {
			_, err := os.Stat(filepath.Join(root, filepath.Dir(p.path), m[1]))
			require.NoError(t, err, "%s links to %s", p.path, m[1])
		}
	}
}

var (
	anchored = regexp.MustCompile(`\]\(([^)#:]*)#([^)]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.+)$`)
	unlinked = regexp.MustCompile(`[^\w\- ]`) // what an anchor does not have of its heading
)

// A link to a section leads to one: without it, a browser shows the top of the page.
func TestDocs_AnchorsExist(t *testing.T) {
	anchors := map[string][]string{}
	for _, p := range pages(t) {
		for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(p.text, ""), -1) {
			text := unlinked.ReplaceAllString(strings.ToLower(m[1]), "")
			anchors[p.path] = append(anchors[p.path], strings.ReplaceAll(text, " ", "-"))
		}
	}
	seen := 0
	for _, p := range pages(t) {
		for _, m := range anchored.FindAllStringSubmatch(p.text, -1) {
			target := p.path
			if m[1] != "" {
				target = filepath.ToSlash(filepath.Join(filepath.Dir(p.path), m[1]))
			}
			seen++
			require.Contains(t, anchors[target], m[2], "%s links to a section of %s", p.path, target)
		}
	}
	require.Greater(t, seen, 10)
}

// Every SQL block runs on a store unchanged.
func TestDocs_QueriesRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dead.db")
	store, err := sqlstore.Open(t.Context(), "sqlite:"+file)
	require.NoError(t, err)
	require.NoError(t, store.Close())
	db, err := sql.Open("sqlite", file)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	for _, p := range pages(t) {
		if p.path == "docs/migrate/dead-letter-table.md" {
			continue // of PostgreSQL: TestMove_DeadLetterTable
		}
		for _, block := range p.blocks("sql") {
			for statement := range strings.SplitSeq(strings.TrimSpace(block), ";\n") {
				_, err := db.ExecContext(t.Context(), statement)
				require.NoError(t, err, "%s: %s", p.path, statement)
			}
		}
	}
}

var (
	tests  = regexp.MustCompile("`(Test[A-Z]\\w*)`")
	cases  = regexp.MustCompile("`([A-Z][a-z]\\w*_[A-Z]\\w*)`")
	header = regexp.MustCompile("(?m)^\\| `([a-z_-]+)`")
)

// Every test that the documentation cites exists.
func TestDocs_ProofsExist(t *testing.T) {
	var sources strings.Builder
	require.NoError(t, fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || !strings.Contains(path, "test") {
			return err
		}
		text, err := os.ReadFile(filepath.Join(root, path))
		sources.Write(text)
		return err
	}))
	seen := 0
	for _, p := range pages(t) {
		for _, m := range tests.FindAllStringSubmatch(p.text, -1) {
			if seen++; !strings.Contains(sources.String(), "\nfunc "+m[1]+"(") {
				t.Errorf("%s: there is no %s", p.path, m[1])
			}
		}
		for _, m := range cases.FindAllStringSubmatch(p.text, -1) {
			if strings.HasPrefix(m[1], "Test") {
				continue
			}
			if seen++; !strings.Contains(sources.String(), "\nfunc (w *world) Test"+m[1]+"(") {
				t.Errorf("%s: there is no case %s", p.path, m[1])
			}
		}
	}
	require.Greater(t, seen, 20)
}

// Every row of the model in SECURITY.md names the tests that prove it.
func TestDocs_SecurityModel(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "SECURITY.md"))
	require.NoError(t, err)
	_, model, found := strings.Cut(string(text), "## The model")
	require.True(t, found)
	rows := 0
	for line := range strings.SplitSeq(model, "\n") {
		if !strings.HasPrefix(line, "| ") || strings.Contains(line, "proved by") {
			continue
		}
		rows++
		columns := strings.Split(strings.Trim(line, "| "), " | ")
		require.True(t, tests.MatchString(columns[len(columns)-1]), "no test proves: %s", line)
	}
	require.Greater(t, rows, 30)
}

// The headers in the table are our own.
func TestDocs_Headers(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "headers.md"))
	require.NoError(t, err)
	table := header.FindAllStringSubmatch(string(text), -1)
	require.Greater(t, len(table), 8)
	for _, m := range table {
		require.True(t, envelope.IsOurs(m[1]), m[1])
	}
}

// The vocabulary of one country's business belongs in the migration guides only.
func TestDocs_NoWordsOfOneCountry(t *testing.T) {
	country := regexp.MustCompile(`(?i)\bcpf\b|falha|valida[cç]`)
	for _, p := range pages(t) {
		if !strings.HasPrefix(p.path, "docs/migrate/") {
			require.NotRegexp(t, country, p.text, p.path)
		}
	}
}
