// Package dashboard_test tests the dashboard in a real Chromium: every screen, and every action up to its effect in the
// store. These are the features that an engineer on call relies on, and their tests:
//
//	a new run starts with exactly the input           TestNewRun_StartsWithExactlyTheInput, TestRun_WatchedToItsEnd
//	one Pause; stale is grey; an unreachable server   TestRefresh_OnePause, TestRefresh_ServerAway
//	faults: saved or not, sent or not, the reason     TestFaults_StateTheFacts, TestEntry_Conflict, TestRun_Stops
//	charts: the hour so far, deaths after a redrive   TestOverview_Curves
//	what is handled and waiting now, pausing intake   TestLive_ShowsCurrentWork, TestLive_PauseAndResume
//	causes: tick, sort, note, mute                    TestCauses_SortAndTick, TestGroup_NoteAndMute
//	entries: one line, suggestions, neighbours        TestEntries_DenseWithSuggestions, TestEntry_NeighboursAndKeys
//	ids link to related entries                       TestEntry_LinksToRelatedEntries
//	editing next to the difference                    TestEntry_EditAndRedrive, TestEntry_EditKeepsBytes
//	runs and audit named and folded, approval         TestRuns_NamedAndFolded, TestRun_Approval, TestApproval_Badge
//	a slow search runs once and can be stopped        TestEntries_SlowSearch
//	phone, keys, the API page, without JavaScript     TestPhone_ShowsCountAndTopCause, TestKeys, TestScreens_API,
//	                                                  TestWithoutJavaScript
//	axe-core, contrast, labels                        TestScreens_Axe, TestScreens_Contrast, TestScreens_Accessible
//	texts that are long, hostile, right to left       TestHostile, and LOOK=directory of TestScreenshots to look at
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
		chromedp.ExecPath(path), chromedp.UserDataDir(profile), chromedp.Flag("no-sandbox", true),
		chromedp.Flag("disable-gpu", true),
		chromedp.Flag("disable-quic", true), chromedp.Flag("no-first-run", true),
		chromedp.Flag("disable-component-update", true),
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

// patience is how long a test waits for a change of the page.
const patience = await.Patience

func requireBrowser(t testing.TB) context.Context {
	t.Helper()
	if _, err := exec.LookPath("chromium"); err != nil {
		const missing = "chromium is not installed: run integration/install.sh chromium"
		if os.Getenv("REQUIRE_SERVICES") == "1" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	ctx, err := browser()
	require.NoError(t, err)
	return ctx
}
