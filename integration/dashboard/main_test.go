// Package dashboard_test drives the dashboard in a real Chromium: every screen, every action to its effect in the
// store.
package dashboard_test

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/await"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // handlers fail here by design
	code := m.Run()
	stopBrowser()
	os.Exit(code)
}

var stopBrowser = func() {}

// browser starts Chromium, once for all tests, with a separate profile. Where it is required and missing, the test
// fails.
var browser = sync.OnceValues(func() (context.Context, error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, err
	}
	profile, err := os.MkdirTemp("", "redrive-chromium-")
	if err != nil {
		return nil, err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.UserDataDir(profile), chromedp.Flag("no-sandbox", true), chromedp.Flag("disable-gpu", true),
		chromedp.Flag("disable-quic", true), chromedp.Flag("no-first-run", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("hide-scrollbars", true), chromedp.Flag("lang", "en-US"), chromedp.Env("TZ=America/Sao_Paulo"))
	allocated, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocated)
	stopBrowser = func() {
		cancel()
		stop()
		_ = os.RemoveAll(profile)
	}
	return ctx, chromedp.Do(ctx)
})

// patience is how long a test waits for something in the page.
const patience = await.Patience

func requireBrowser(t testing.TB) context.Context {
	t.Helper()
	if _, err := exec.LookPath("chromium"); err != nil {
		const missing = "no chromium here: run integration/install.sh chromium"
		if os.Getenv("REQUIRE_SERVICES") == "1" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	ctx, err := browser()
	require.NoError(t, err)
	return ctx
}
