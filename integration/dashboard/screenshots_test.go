package dashboard_test

import (
	"bytes"
	"fmt"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/integration/await"
)

const (
	images = "../../docs/img"
	// maxImage is the size limit for pictures in the documentation.
	maxImage = 150 << 10
)

// The pictures in the documentation are screenshots made by this test: UPDATE_SCREENSHOTS=1 rewrites them, and without
// it their names and sizes are checked. With LOOK=directory it writes screenshots of all screens in all states to that
// directory instead.
func TestScreenshots(t *testing.T) {
	if dir := os.Getenv("LOOK"); dir != "" {
		takeAll(t, dir)
		return
	}
	s, run := shop(t)
	update := os.Getenv("UPDATE_SCREENSHOTS") == "1"
	shots := []struct {
		name, path, scheme string
		width, height      int64
	}{
		{"overview", "/", "light", 1280, 860},
		{"overview-dark", "/", "dark", 1280, 860},
		{"entries", "/entries?status=PENDING", "light", 1280, 760},
		{"entry", "/entries/" + driver.FormatID(interesting(t, s)), "light", 1280, 980},
		{"newrun", "/runs/new?q=card&jq=.currency+%3D+%22EUR%22", "light", 1280, 900},
		{"run", "/runs/" + run, "light", 1280, 640},
		{"live", "/live", "light", 1280, 760},
		{"causes", "/groups", "light", 1280, 620},
		{"phone", "/", "dark", 390, 780},
	}
	b := s.open(t, "ana:admin")
	b.visit("/")
	for _, shot := range shots {
		b.do(chromedp.EmulateViewport(shot.width, shot.height))
		b.media("prefers-color-scheme", shot.scheme)
		b.visit(shot.path)
		b.wait(`[...document.querySelectorAll(".chart")].every((c) => c.querySelector("canvas"))`)
		picture := act(b, chromedp.CaptureScreenshot())
		decoded, err := png.Decode(bytes.NewReader(picture))
		require.NoError(t, err)
		require.Equal(t, int(shot.width), decoded.Bounds().Dx())
		path := filepath.Join(images, "dashboard-"+shot.name+".png")
		if update {
			require.NoError(t, os.MkdirAll(images, 0o755))
			var small bytes.Buffer
			require.NoError(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, quantize(decoded)))
			require.NoError(t, os.WriteFile(path, small.Bytes(), 0o644))
		}
		info, err := os.Stat(path)
		require.NoError(t, err, "UPDATE_SCREENSHOTS=1 creates it")
		require.Less(t, info.Size(), int64(maxImage), path)
	}
}

// shop is a week of a shop whose bank is sometimes down, with a run in progress.
func shop(t testing.TB) (*site, string) {
	t.Helper()
	s := newSite(t)
	now := time.Now()
	var batch []*dlq.Entry
	const letters = 3600
	for i := range letters {
		n := letters - 1 - i                             // the oldest first
		hours := 168 * math.Pow(float64(n)/letters, 1.6) // more recently
		at := now.Add(-time.Duration(hours*float64(time.Hour)) - time.Duration(n%7)*11*time.Minute)
		if at.Hour()%6 == 2 && n%3 > 0 {
			at = at.Add(-90 * time.Minute)
		}
		e := letter(n, at)
		if n%5 < 2 && hours > 3 { // closed some time after it died
			closed := at.Add(time.Duration(20+n%160) * time.Minute)
			e.Status, e.Version, e.ResolvedAt, e.ResolvedBy, e.ChangedAt, e.ChangedBy = dlq.Resolved, 2, closed, "redrive",
				closed, "redrive"
		}
		batch = append(batch, e)
	}
	for len(batch) > 0 {
		n := min(500, len(batch))
		_, err := s.letters.Store().Put(t.Context(), batch[:n]...)
		require.NoError(t, err)
		batch = batch[n:]
	}
	var handled atomic.Int64
	paused := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(paused) })
	t.Cleanup(goOn)
	s.breaks(func(m *message.Message) error {
		if handled.Add(1) > 200 {
			<-paused // the run must not end before it is paused
		}
		if m.UUID[len(m.UUID)-1] == '3' {
			return errStillBroken
		}
		return nil
	})
	run, err := s.runner.StartRun(t.Context(), redrive.Spec{
		Filter: dlq.Filter{CauseText: "connection refused"}, Canary: []int{10, 100}, Rate: 60, Limit: 600,
		Stop: redrive.StopCondition{Share: 0.9},
	}, dlq.By{Actor: "ana", Note: "the bank is open again"})
	require.NoError(t, err)
	await.True(t, func() bool {
		run, err = s.runner.Run(t.Context(), run.ID)
		return err == nil && run.Counts.Done() > 120
	})
	s.publish(t, "mails", slices.Repeat([]string{"fail"}, 37)...)
	s.publish(t, "mails", "slow", "slow", "slow")
	t.Cleanup(func() { close(s.release) })
	run, err = s.runner.PauseRun(t.Context(), run.ID, dlq.By{Actor: "bob", Note: "lunch"})
	require.NoError(t, err)
	goOn()
	return s, run.ID
}

// interesting is an entry with a history.
func interesting(t testing.TB, s *site) int64 {
	t.Helper()
	once := 1
	l, err := s.manager.List(t.Context(), dlq.Filter{Statuses: []dlq.Status{dlq.Pending}, Redrives: &once}, dlq.Page{})
	require.NoError(t, err)
	require.NotEmpty(t, l.Entries)
	e := s.entry(t, l.Entries[0].ID)
	fixed := bytes.Replace(e.Body.Payload, []byte(`"currency":null`), []byte(`"currency":"EUR"`), 1)
	_, _, err = s.manager.Edit(t.Context(), e.ID, dlq.Edit{Payload: fixed},
		dlq.By{Actor: "ana", Note: fmt.Sprint("order ", e.SourceID, " is from Lisbon")})
	require.NoError(t, err)
	return e.ID
}
