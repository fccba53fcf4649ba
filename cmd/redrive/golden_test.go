package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
)

var update = flag.Bool("update", false, "write what the program prints into testdata")

// Each file of testdata is a session: commands behind "$ redrive ", and what they print on stdout, on stderr (behind "!
// ") and as exit code (behind "=> ", unless 0). Every session begins with the store of seed in a separate directory.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		path, err := filepath.Abs(file)
		require.NoError(t, err)
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			hermetic(t)
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			t.Chdir(t.TempDir())
			t.Setenv("REDRIVE_STORE", "dead.db")
			seed(t, "dead.db")
			seedQueue(t, "queue.db")
			got := play(t, string(want))
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
				return
			}
			require.Equal(t, string(want), got)
		})
	}
}

// hermetic clears the environment's settings.
func hermetic(t *testing.T) {
	t.Helper()
	for _, name := range []string{
		"REDRIVE_CONFIG", "REDRIVE_STORE", "REDRIVE_BROKER", "REDRIVE_SERVER", "REDRIVE_PROFILE", "REDRIVE_PROFILES",
		"REDRIVE_TOKEN",
	} {
		t.Setenv(name, "")
	}
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv("REDRIVE_ACTOR", "ana")
}

// play runs the commands of a session and returns it with their new output. A line "> name" in front of the commands
// puts the lines up to "<" into a file.
func play(t *testing.T, session string) string {
	t.Helper()
	var out strings.Builder
	var file *strings.Builder
	name := ""
	for line := range strings.Lines(session) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case file != nil && line == "<":
			require.NoError(t, os.WriteFile(name, []byte(file.String()), 0o600))
			file = nil
		case file != nil:
			file.WriteString(line + "\n")
		case strings.HasPrefix(line, "> "):
			file, name = new(strings.Builder), line[2:]
		case strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "$ redrive"):
			fmt.Fprintln(&out, line)
			out.WriteString(transcript(words(t, strings.TrimPrefix(line, "$ redrive"))))
			continue
		default:
			continue // the old output
		}
		fmt.Fprintln(&out, line)
	}
	return out.String()
}

func transcript(args []string) string {
	var stdout, stderr bytes.Buffer
	code := run(args, strings.NewReader(""), &stdout, &stderr)
	var out strings.Builder
	out.WriteString(stdout.String())
	for line := range strings.Lines(stderr.String()) {
		out.WriteString("! " + line)
	}
	if code != 0 {
		fmt.Fprintf(&out, "=> %d\n", code)
	}
	out.WriteString("\n")
	return scrub(out.String())
}

var stamps = regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z`)

// scrub replaces current times. Those of the seed and of help are older.
func scrub(text string) string {
	return stamps.ReplaceAllStringFunc(text, func(stamp string) string {
		at, err := time.Parse(time.RFC3339Nano, strings.Replace(stamp, " ", "T", 1))
		if err == nil && time.Since(at).Abs() < 25*time.Hour {
			return "NOW"
		}
		return stamp
	})
}

// words splits a command line; single quotes keep words together.
func words(t *testing.T, line string) []string {
	t.Helper()
	var args []string
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			args = append(args, part)
			continue
		}
		args = append(args, strings.Fields(part)...)
	}
	return args
}

// seed stores five dead letters of two causes and three topics.
func seed(t *testing.T, path string) {
	t.Helper()
	letters, err := dlq.Open(t.Context(), "sqlite:"+path+"?synchronous=normal", dlq.WithoutSpool())
	require.NoError(t, err)
	died := time.Date(2025, 11, 20, 7, 30, 0, 0, time.UTC)
	for i, d := range []envelope.DeadLetter{
		{Err: envelope.Error{Message: "bank: timeout after 30s", Code: "504"}, Reason: envelope.ReasonExhausted, Attempts: 4},
		{Err: envelope.Error{Message: "bank: timeout after 31s", Code: "504"}, Reason: envelope.ReasonExhausted, Attempts: 4},
		{
			Err: envelope.Error{Message: "order 17 has no customer", Code: "422"}, Reason: envelope.ReasonPermanent,
			Attempts: 1,
		},
		{Err: envelope.Error{Message: "bank: timeout after 30s", Code: "504"}, Reason: envelope.ReasonExhausted, Attempts: 4},
		{Err: envelope.Error{Message: "evil \x1b[31mred\n"}, Reason: envelope.ReasonPanic, Attempts: 1},
	} {
		n := i + 1
		m := message.NewMessage(fmt.Sprintf("message-%d", n), fmt.Appendf(nil, `{"order":%d,"total":%d}`, n, 100*n))
		m.Metadata = message.Metadata{
			envelope.KeyMessageID: m.UUID, envelope.KeyVersion: "1.0", envelope.KeyEvent: "order.placed", "tenant": "acme",
		}
		if n == 5 {
			m.Payload = []byte{0xff, 0x00, 0x1b}
		}
		d.Message, d.Class, d.Handler = m, "*bank.Error", "pay"
		d.Origin = envelope.Origin{Broker: "sqlite", Topic: "orders", Consumer: "billing"}
		if n == 4 {
			d.Origin.Topic = "invoices"
		}
		d.At = died.Add(time.Duration(n) * time.Minute)
		d.FirstFailure = d.At.Add(-time.Minute)
		_, err := letters.Store().Put(t.Context(), dlq.NewEntry(&d))
		require.NoError(t, err)
	}
	require.NoError(t, letters.Close())
}

// workplace is a directory with some dead letters and the queues that they came from, which are the default ones.
func workplace(t *testing.T) {
	t.Helper()
	hermetic(t)
	t.Chdir(t.TempDir())
	seed(t, "dead.db")
	seedQueue(t, "queue.db")
	t.Setenv("REDRIVE_STORE", "dead.db")
	t.Setenv("REDRIVE_BROKER", "sqlite:queue.db")
}

// seedQueue makes a SQL queue that the consumers of the seed's dead letters have once used.
func seedQueue(t *testing.T, path string) {
	t.Helper()
	broker, err := brokers.Open(t.Context(), "sqlite:"+path)
	require.NoError(t, err)
	for _, topic := range []string{"orders", "invoices"} {
		subscriber, ok := broker.Subscriber(brokers.WithGroup("billing")).(message.SubscribeInitializer)
		require.True(t, ok)
		require.NoError(t, subscriber.SubscribeInitialize(topic))
	}
	require.NoError(t, broker.Close())
}
