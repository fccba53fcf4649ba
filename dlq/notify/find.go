package notify

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

const (
	// window is the maximum age of an event that people are notified of.
	window = 24 * time.Hour
	// maxText limits the text of a cause in a sentence.
	maxText = 300
)

// noticeOf makes a notice. Its id is derived from its kind and subject, so it is the same in every process.
func (n *Notifier) noticeOf(kind NoticeKind, subject string, at time.Time, text string, path ...string) wire.Notice {
	notice := wire.Notice{
		ID:   uuid.NewSHA1(uuid.NameSpaceOID, []byte("redrive notice\x00"+string(kind)+"\x00"+subject)).String(),
		Kind: string(kind), At: at.UTC(), Text: text,
	}
	if n.cfg.PublicURL != "" {
		for i := range path {
			path[i] = url.PathEscape(path[i])
		}
		notice.Link = n.cfg.PublicURL + "/" + strings.Join(path, "/")
	}
	return notice
}

// find returns the notices for what happened in the window, oldest first, without muted causes.
func (n *Notifier) find(ctx context.Context, now time.Time) ([]wire.Notice, error) {
	mutes, err := n.store.Mutes(ctx, now)
	if err != nil {
		return nil, err
	}
	muted := map[string]bool{}
	for i := range mutes {
		muted[mutes[i].Fingerprint] = true
	}
	causes, err := n.causes(ctx, now, muted)
	if err != nil {
		return nil, err
	}
	runs, err := n.stopped(ctx, now, muted)
	if err != nil {
		return nil, err
	}
	found := append(causes, runs...)
	slices.SortStableFunc(found, func(a, b wire.Notice) int {
		return cmp.Or(a.At.Compare(b.At), strings.Compare(a.ID, b.ID))
	})
	return found, nil
}

// causes returns notices of new causes and of those that are back. Causes that look the same to viewers are one, as on
// the dashboard.
func (n *Notifier) causes(ctx context.Context, now time.Time, muted map[string]bool) ([]wire.Notice, error) {
	since := now.Add(-window)
	groups, err := n.store.Groups(ctx, driver.GroupQuery{
		SeenSince: since, TrendSince: since.Add(-n.cfg.Quiet), Limit: driver.MaxPage,
	})
	if err != nil {
		return nil, err
	}
	quiet := map[string]bool{}
	for i := range groups {
		if muted[groups[i].Fingerprint] {
			quiet[n.cfg.Redaction.Group(groups[i]).Fingerprint] = true
		}
	}
	var found []wire.Notice
	for _, g := range n.cfg.Redaction.Groups(groups) {
		if quiet[g.Fingerprint] {
			continue
		}
		what := cmp.Or(oneLine(g.Cause), "an error without a text")
		if g.Handler != "" {
			what += " (in " + oneLine(g.Handler) + ")"
		}
		var notice wire.Notice
		if again, ok := returned(&g, since, n.cfg.Quiet); !g.FirstSeen.Before(since) {
			notice = n.noticeOf(NewCause, g.Fingerprint, g.FirstSeen, "New cause of dead letters: "+what, "groups",
				g.Fingerprint)
		} else if ok {
			at := again.Add(time.Hour) // only the hour is known
			if g.LastSeen.Before(at) {
				at = g.LastSeen
			}
			notice = n.noticeOf(RegressedCause, g.Fingerprint+again.UTC().String(), at, "A cause has come back: "+what, "groups",
				g.Fingerprint)
		} else {
			continue
		}
		g.Trend = nil
		notice.Cause = &g
		found = append(found, notice)
	}
	return found, nil
}

// returned finds the last hour after since in which a cause occurred after it had been quiet.
func returned(g *wire.Group, since time.Time, quiet time.Duration) (time.Time, bool) {
	last := g.FirstSeen.Truncate(time.Hour)
	var found time.Time
	for _, h := range g.Trend {
		if h.Count == 0 {
			continue
		}
		if h.Hour.Sub(last) > quiet && !h.Hour.Before(since) {
			found = h.Hour
		}
		last = h.Hour
	}
	return found, !found.IsZero()
}

// stopped returns notices of runs that need a person.
func (n *Notifier) stopped(ctx context.Context, now time.Time, muted map[string]bool) ([]wire.Notice, error) {
	var found []wire.Notice
	if n.runs == nil {
		return nil, nil
	}
	filter := redrive.RunFilter{States: []redrive.State{redrive.Stopped, redrive.AwaitingApproval}}
	runs, _, err := n.runs.Runs(ctx, filter, dlq.Page{Limit: driver.MaxPage})
	if err != nil {
		return nil, err
	}
	for i := range runs {
		run := &runs[i]
		if run.ChangedAt.Before(now.Add(-window)) || muted[run.Spec.Filter.Fingerprint] {
			continue
		}
		shown := n.cfg.Redaction.Run(run.Shown(now))
		kind, text := RunStopped, fmt.Sprintf("Redrive run %s, started by %s, has stopped: %s", shown.ID,
			oneLine(shown.CreatedBy), oneLine(shown.Cause))
		if run.State == redrive.AwaitingApproval {
			kind, text = RunAwaitsApproval, fmt.Sprintf(
				"Redrive run %s, started by %s, waits for approval of %d messages", shown.ID,
				oneLine(shown.CreatedBy), run.Counts.Total())
		}
		notice := n.noticeOf(kind, fmt.Sprint(run.ID, "\x00", run.Version), run.ChangedAt, text, "runs", shown.ID)
		notice.Run = &shown
		found = append(found, notice)
	}
	return found, nil
}

// oneLine makes a text fit into a sentence.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if r := []rune(text); len(r) > maxText {
		text = string(r[:maxText]) + "…"
	}
	return text
}
