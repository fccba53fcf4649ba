package dashboard_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
)

// takeAll takes screenshots of every screen for review: with an empty store, with one incident, with 100,000 letters,
// and with long and right-to-left texts, at two widths, light and dark.
func takeAll(t *testing.T, dir string) {
	t.Helper()
	for name, fill := range looks {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			run := fill(t, s)
			paths := map[string]string{
				"overview": "/", "causes": "/groups", "entries": "/entries?status=any", "live": "/live", "report": "/report",
				"runs":   "/runs",
				"newrun": "/runs/new", "audit": "/audit", "retention": "/retention?days=0&resolved=1", "system": "/system",
			}
			if run != "" {
				paths["run"] = "/runs/" + run
				paths["entry"], paths["edit"] = "/entries/1", "/entries/1/edit"
				paths["cause"] = "/groups/" + s.entry(t, 1).Fingerprint
			}
			b := s.open(t, "ana:admin")
			for _, width := range []int64{1440, 390} {
				b.do(chromedp.EmulateViewport(width, 900))
				for _, scheme := range []string{"light", "dark"} {
					b.media("prefers-color-scheme", scheme)
					for page, path := range paths {
						b.visit(path)
						b.wait(`[...document.querySelectorAll(".chart")].every((c) => c.querySelector("canvas"))`)
						picture := act(b, chromedp.FullScreenshot(100))
						require.NoError(t, os.MkdirAll(dir, 0o755))
						file := fmt.Sprintf("%s-%s-%d-%s.png", name, page, width, scheme)
						require.NoError(t, os.WriteFile(filepath.Join(dir, file), picture, 0o644))
					}
				}
			}
		})
	}
}

// looks are the states of a store. Each function fills the store and returns a run.
var looks = map[string]func(*testing.T, *site) string{
	"empty": func(*testing.T, *site) string { return "" },
	"incident": func(t *testing.T, s *site) string {
		t.Helper()
		now := time.Now()
		batch := make([]*dlq.Entry, 400)
		for i := range batch {
			batch[i] = letter(i, now.Add(-time.Duration(i)*3*time.Second), cause("bank: connection refused after 30 s"))
		}
		putAll(t, s, batch)
		return startPaused(t, s)
	},
	"many": func(t *testing.T, s *site) string {
		t.Helper()
		now := time.Now()
		for at := 0; at < 100_000; at += 1000 {
			batch := make([]*dlq.Entry, 1000)
			for i := range batch {
				n := at + i
				batch[i] = letter(n, now.Add(-time.Duration(n)*6*time.Second))
			}
			putAll(t, s, batch)
		}
		return startPaused(t, s)
	},
	"texts": func(t *testing.T, s *site) string {
		t.Helper()
		texts := []string{
			strings.Repeat("the settlement of the invoice could not be written because ", 12) + "the disk is full",
			"dial tcp: lookup " + strings.Repeat("verylonghostnamewithoutanybreak", 9) + ".internal: no such host",
			"فشل الدفع: رفض البنك البطاقة رقم 4111 للعميل محمد (insufficient funds) بعد 3 محاولات",
			"התשלום נכשל: הבנק דחה את הכרטיס order=42 status=DECLINED",
			"支払いに失敗しました：銀行の応答がありません。しばらくしてからもう一度お試しください。",
		}
		now := time.Now()
		batch := make([]*dlq.Entry, 40)
		for i := range batch {
			batch[i] = letter(i, now.Add(-time.Duration(i)*17*time.Minute), cause(texts[i%len(texts)]),
				func(d *envelope.DeadLetter) {
					d.Handler = strings.Repeat("billing.settlement.", 1+i%4) + "handler"
					d.Origin.Topic = strings.Repeat("orders.priority.", 1+i%5) + "created"
					d.Message.Payload = fmt.Appendf(nil, `{"customer":%q,"note":%q}`, "محمد علي", strings.Repeat("unbroken", 60))
				})
		}
		putAll(t, s, batch)
		return startPaused(t, s)
	},
}

func putAll(t *testing.T, s *site, batch []*dlq.Entry) {
	t.Helper()
	_, err := s.letters.Store().Put(t.Context(), batch...)
	require.NoError(t, err)
}

func startPaused(t *testing.T, s *site) string {
	t.Helper()
	by := dlq.By{Actor: "bob", Note: "the bank is open again"}
	run, err := s.runner.StartRun(t.Context(), redrive.Spec{Limit: 50, Paused: true, Rate: 5}, by)
	require.NoError(t, err)
	return run.ID
}
