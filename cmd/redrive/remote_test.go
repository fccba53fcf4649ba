package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/envelope"
)

// serveSeed runs a server on the store dead.db and the queue queue.db of a session, and returns its address.
func serveSeed(t *testing.T, more string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "server.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `
store: {url: "sqlite:dead.db?synchronous=normal"}
brokers: {sqlite: {url: "sqlite:queue.db"}}
server: {address: %q%s}
`, anyPort, more), 0o600))
	_, stderr, _ := start(t, "serve", "--config", file)
	return served(t, stderr)
}

// The commands print the same through a server's API as on the store itself: the same sessions, to the byte. A separate
// session covers what only a server does.
func TestGolden_ThroughServer(t *testing.T) {
	for _, name := range []string{"look", "show", "change", "edit", "audit", "remote/runs"} {
		path, err := filepath.Abs(filepath.Join("testdata", name+".txt"))
		require.NoError(t, err)
		t.Run(name, func(t *testing.T) {
			hermetic(t)
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			t.Chdir(t.TempDir())
			seed(t, "dead.db")
			seedQueue(t, "queue.db")
			if strings.HasPrefix(name, "remote/") { // paused before the server starts, which would send it at once
				held(t)
			}
			t.Setenv("REDRIVE_SERVER", serveSeed(t, ""))
			// The server has a broker, which the session on the store names.
			got := play(t, strings.ReplaceAll(string(want), " --broker sqlite:queue.db", ""))
			want = []byte(strings.ReplaceAll(string(want), " --broker sqlite:queue.db", ""))
			if *update && strings.HasPrefix(name, "remote/") {
				require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
				return
			}
			require.Equal(t, string(want), got)
		})
	}
}

// held leaves a paused run of one dead letter in the store dead.db.
func held(t *testing.T) {
	t.Helper()
	code, _, stderr := command(t, "dlq", "redrive", "--topic", "invoices", "--detach", "--close-on-publish", "--yes",
		"--id", "held", "--store", "dead.db")
	require.Equal(t, exitOK, code, stderr)
	code, _, stderr = command(t, "runs", "pause", "held", "--store", "dead.db")
	require.Equal(t, exitOK, code, stderr)
}

// command runs a command and returns its output.
func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, faults bytes.Buffer
	code = run(args, strings.NewReader(""), &out, &faults)
	return code, out.String(), faults.String()
}

// The server decides on identities and rights: the token comes from the environment, a file or a profile, and is never
// shown.
func TestRemote_Credentials(t *testing.T) {
	hermetic(t)
	t.Chdir(t.TempDir())
	seed(t, "dead.db")
	seedQueue(t, "queue.db")
	const token, viewer = "rdr_this-is-the-token-of-ana", "rdr_this-is-the-token-of-vic"
	server := serveSeed(t, fmt.Sprintf(`, auth: {tokens: [{name: ana, role: operator, hash: %q}, {name: vic, role: `+
		`viewer, hash: %q}]}`,
		dlqhttp.HashToken(token), dlqhttp.HashToken(viewer)))

	code, _, stderr := command(t, "dlq", "list", "--server", server)
	require.Equal(t, exitRefused, code)
	require.Contains(t, stderr, "REDRIVE_TOKEN")

	t.Setenv("REDRIVE_TOKEN", viewer)
	code, stdout, _ := command(t, "dlq", "list", "--server", server, "--jq", "length")
	require.Equal(t, exitOK, code)
	require.Equal(t, "5\n", stdout)
	code, stdout, stderr = command(t, "dlq", "report", "--server", server)
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stdout, "# Dead letters, ")
	code, _, stderr = command(t, "dlq", "resolve", "1", "--server", server)
	require.Equal(t, exitRefused, code)
	require.Contains(t, stderr, "vic is viewer; this needs the role operator")

	require.NoError(t, os.WriteFile("token", []byte(token+"\n"), 0o600))
	code, _, stderr = command(t, "dlq", "resolve", "1", "--server", server, "--token-file", "token", "--actor",
		"bob")
	require.Equal(t, exitOK, code, stderr)
	_, stdout, _ = command(t, "dlq", "show", "1", "--server", server, "--jq", ".resolved_by")
	require.Equal(t, "ana\n", stdout, "the server knows who it was")

	t.Setenv("REDRIVE_TOKEN", "")
	t.Setenv("THE_TOKEN", token)
	t.Setenv("REDRIVE_PROFILES", "profiles.yaml")
	profiles := fmt.Sprintf("profiles:\n  test: {server: %q, token: \"${THE_TOKEN}\"}\n  other: {token: x}\n", server)
	require.NoError(t, os.WriteFile("profiles.yaml", []byte(profiles), 0o644))
	code, _, stderr = command(t, "dlq", "resolve", "2", "--profile", "test")
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "chmod 600")
	require.NoError(t, os.Chmod("profiles.yaml", 0o600))
	code, _, stderr = command(t, "dlq", "resolve", "2", "--profile", "test")
	require.Equal(t, exitOK, code, stderr)

	for name, test := range map[string]struct {
		args []string
		want string
		code int
	}{
		"no such profile": {[]string{"--profile", "none"}, "has no server under this name", exitUsage},
		"profile without": {[]string{"--profile", "other"}, "has no server under this name", exitUsage},
		"server and store": {
			[]string{"--server", server, "--store", "dead.db"},
			"leave one or the other out",
			exitUsage,
		},
		"server and broker": {
			[]string{"--server", server, "--broker", "sqlite:queue.db"},
			"leave one or the other out",
			exitUsage,
		},
		"password in the URL": {[]string{"--server", "http://a:s3cret@localhost:1"}, "put them into a profile", exitUsage},
		"no URL":              {[]string{"--server", "localhost:8321"}, "is a URL such as", exitUsage},
		"no server":           {[]string{"--server", "http://127.0.0.1:1"}, "the server does not answer", exitError},
		"not a redrive server": {
			[]string{"--server", server + "/wrong", "--token-file", "token"},
			"nothing is served at",
			exitNotFound,
		},
		"no token file":         {[]string{"--server", server, "--token-file", "none"}, "--token-file", exitUsage},
		"interactive is as all": {[]string{"--profile", "test", "--limit", "0"}, "", exitOK},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := command(t, append([]string{"dlq", "list"}, test.args...)...)
			require.Equal(t, test.code, code, stderr)
			require.Contains(t, stderr, test.want)
			require.NotContains(t, stderr, "s3cret")
			require.NotContains(t, stderr, token)
		})
	}
}

// A 404 of a server that is no redrive server is an error, not a dead letter that does not exist.
func TestRemote_NotARedriveServer(t *testing.T) {
	hermetic(t)
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	code, _, stderr := command(t, "dlq", "show", "7", "--server", other.URL)
	require.Equal(t, exitError, code)
	require.Equal(t, "redrive: the server answered 404: is the URL that of a redrive server?\n", stderr)
}

// The report through a server is the same as that of the store.
func TestRemote_Report(t *testing.T) {
	hermetic(t)
	t.Chdir(t.TempDir())
	seed(t, "dead.db")
	const asked = "[.now, .before, .new, .growing, .returning, .fixed, .steady, (.to | fromdate) - (.from | fromdate)]"
	code, want, stderr := command(t, "dlq", "report", "--store", "dead.db", "--since", "8760h", "--jq", asked)
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, want, "31536000")
	code, got, stderr := command(t, "dlq", "report", "--server", serveSeed(t, ""), "--since", "8760h", "--jq", asked)
	require.Equal(t, exitOK, code, stderr)
	require.Equal(t, want, got)

	var paths []string
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.String())
		http.Error(w, "no", http.StatusTeapot)
	}))
	t.Cleanup(api.Close)
	_, _, _ = command(t, "dlq", "report", "--server", api.URL, "--since", "24h")
	require.Equal(t, []string{"/api/v1/report?hours=24"}, paths, "one request, and no list of causes that is cut off")
}

// An export through a server equals the store's, to the byte, and an import through it restores it.
func TestRemote_Transfer(t *testing.T) {
	hermetic(t)
	t.Chdir(t.TempDir())
	seed(t, "dead.db")
	seedQueue(t, "queue.db")
	code, direct, stderr := command(t, "dlq", "export", "--store", "dead.db")
	require.Equal(t, exitOK, code, stderr)
	t.Setenv("REDRIVE_SERVER", serveSeed(t, ""))
	code, exported, stderr := command(t, "dlq", "export")
	require.Equal(t, exitOK, code, stderr)
	require.Equal(t, direct, exported)
	require.Contains(t, stderr, "5 dead letters exported")

	require.NoError(t, os.WriteFile("all.jsonl", []byte(exported), 0o600))
	code, _, stderr = command(t, "dlq", "import", "all.jsonl")
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stderr, "0 stored, 5 already there")
	require.NoError(t, os.WriteFile("damaged.jsonl", []byte(`{"v":2,"entry":{},"bodies":[]}`), 0o600))
	code, _, stderr = command(t, "dlq", "import", "damaged.jsonl")
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "line 1: invalid request")
}

// A run through a server has the rate of the server's configuration unless it is given one.
func TestRemote_Rate(t *testing.T) {
	hermetic(t)
	t.Chdir(t.TempDir())
	seed(t, "dead.db")
	seedQueue(t, "queue.db")
	t.Setenv("REDRIVE_SERVER", serveSeed(t, "}\nredrive: {rate: 2.5"))
	for want, more := range map[string][]string{"2.5\n": {}, "4\n": {"--rate", "4"}, "null\n": {"--rate", "0"}} {
		args := append([]string{"dlq", "redrive", "--topic", "orders", "--dry-run", "--jq", ".spec.rate"}, more...)
		code, stdout, stderr := command(t, args...)
		require.Equal(t, exitOK, code, stderr)
		require.Equal(t, want, stdout, more)
	}
}

// An export that fails leaves no file, which would refuse the next try.
func TestExport_LeavesNoPart(t *testing.T) {
	hermetic(t)
	t.Chdir(t.TempDir())
	breaks := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.URL.Path, "export") {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"count":2}`))
			return
		}
		w.Header().Set("Content-Type", "application/jsonl")
		_, _ = w.Write([]byte("{}\n"))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(breaks.Close)
	for want, server := range map[string]string{"the export broke off": breaks.URL, "refused": "http://127.0.0.1:1"} {
		code, _, stderr := command(t, "dlq", "export", "--file", "all.jsonl", "--server", server)
		require.Equal(t, exitError, code, stderr)
		require.Contains(t, stderr, want)
		require.NoFileExists(t, "all.jsonl")
	}
}

// A message that dies between the count and the change was neither counted nor confirmed, so it is not changed. When
// the count is 0, no change is sent.
func TestChange_OnlyTheCounted(t *testing.T) {
	hermetic(t)
	for _, verb := range [][]string{{"park"}, {"redrive", "--id", "counted", "--detach"}} {
		t.Run(verb[0], func(t *testing.T) {
			t.Chdir(t.TempDir())
			seed(t, "dead.db")
			seedQueue(t, "queue.db")
			target, err := url.Parse(serveSeed(t, ""))
			require.NoError(t, err)
			forward, changes := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}, 0
			between := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/api/v1/entries/bulk" || r.URL.Path == "/api/v1/runs" && r.Method == http.MethodPost {
					changes++
					late(t, "dead.db")
				}
				forward.ServeHTTP(w, r)
			}))
			t.Cleanup(between.Close)
			do := func(topic string) string {
				args := append([]string{"dlq"}, append(verb, "--server", between.URL, "--yes", "--topic", topic)...)
				code, stdout, stderr := command(t, args...)
				require.Equal(t, exitOK, code, stderr)
				return stdout + stderr
			}
			require.Contains(t, do("nothing"), "no dead letters match")
			require.Zero(t, changes)
			require.Contains(t, do("orders"), map[string]string{"park": "4 parked", "redrive": "4 waiting"}[verb[0]])
			require.Equal(t, 1, changes)
		})
	}
}

// late stores a dead letter of the topic orders that dies later than now.
func late(t *testing.T, path string) {
	t.Helper()
	letters, err := dlq.Open(t.Context(), "sqlite:"+path, dlq.WithoutSpool())
	require.NoError(t, err)
	_, err = letters.Store().Put(t.Context(), dlq.NewEntry(&envelope.DeadLetter{
		Message: message.NewMessage("late", nil), Origin: envelope.Origin{Topic: "orders", Consumer: "billing"},
		At: time.Now().Add(time.Minute),
	}))
	require.NoError(t, err)
	require.NoError(t, letters.Close())
}
