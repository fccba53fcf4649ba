package main

import (
	"fmt"
	"html"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
)

// The picture of a terminal in the README is what the commands in it print today, in 80 columns: go test ./cmd/redrive
// -run TestPicture -update redraws it.
func TestPicture(t *testing.T) {
	hermetic(t)
	dir := t.TempDir()
	store, queue := filepath.Join(dir, "dead.db"), filepath.Join(dir, "queue.db")
	seedPicture(t, store)
	seedQueue(t, queue)
	t.Setenv("TERM", "dumb")
	var shown strings.Builder
	for _, line := range []string{
		"dlq groups",
		"dlq list --limit 4",
		"dlq redrive --error timeout --canary 1,3 --id evening --close-on-publish -y",
		"runs list",
	} {
		file, screen := terminal(t)
		require.NoError(t, unix.IoctlSetWinsize(int(file.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 80, Row: 24}))
		args := append(strings.Fields(line), "--store", store, "--broker", "sqlite:"+queue)
		require.Equal(t, exitOK, runContext(t.Context(), args, strings.NewReader(""), file, io.Discard), line)
		shown.WriteString("$ redrive " + line + "\n")
		shown.WriteString(strings.ReplaceAll(screen(), "\r\n", "\n") + "\n")
	}
	text := strings.TrimSpace(seconds.ReplaceAllString(shown.String(), "1s ago"))
	for line := range strings.Lines(text) {
		require.LessOrEqual(t, len([]rune(line)), 90, "as wide as the picture: %s", line)
	}
	path := filepath.Join("..", "..", "docs", "img", "terminal.svg")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(svg(text)), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), svg(text))
}

// seedPicture stores dead letters of the last hour, at times at which the minutes do not change while a test runs.
func seedPicture(t *testing.T, path string) {
	t.Helper()
	letters, err := dlq.Open(t.Context(), "sqlite:"+path+"?synchronous=normal", dlq.WithoutSpool())
	require.NoError(t, err)
	for i := range 14 {
		text, reason := fmt.Sprintf("bank: timeout after %d ms", 3000+i), envelope.ReasonExhausted
		if i%4 == 3 {
			text, reason = fmt.Sprintf("order %d has no customer", 4700+i), envelope.ReasonPermanent
		}
		m := message.NewMessage(fmt.Sprintf("message-%d", i), fmt.Appendf(nil, `{"order":%d}`, 4700+i))
		m.Metadata[envelope.KeyMessageID] = m.UUID
		at := time.Now().Add(-time.Duration(44-3*i)*time.Minute - 20*time.Second)
		_, err := letters.Store().Put(t.Context(), dlq.NewEntry(&envelope.DeadLetter{
			Message: m, Reason: reason, Err: envelope.Error{Message: text}, Class: "*bank.Error", Handler: "charge", Attempts: 4,
			Origin: envelope.Origin{Broker: "sqlite", Topic: "orders", Consumer: "billing"}, At: at, FirstFailure: at,
		}))
		require.NoError(t, err)
	}
	require.NoError(t, letters.Close())
}

// A recent event may be a few seconds ago on a busy machine.
var seconds = regexp.MustCompile(`\b\d+s ago`)

// svg draws text as a terminal shows it; the lines that were typed are bright.
func svg(text string) string {
	const line, left = 18, 16
	lines := strings.Split(text, "\n")
	height := line*len(lines) + 3*left
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 %d" role="img" aria-label="A session in a terminal">
<rect width="800" height="%d" rx="8" fill="#0d1117"/>
<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13" fill="#b8c0cc" xml:space="preserve">
`, height, height)
	for i, l := range lines {
		fill := ""
		if strings.HasPrefix(l, "$ ") {
			fill = ` fill="#ffffff" font-weight="bold"`
		}
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\"%s>%s</text>\n", left, 2*left+line*i, fill, html.EscapeString(l))
	}
	b.WriteString("</g>\n</svg>\n")
	return b.String()
}
