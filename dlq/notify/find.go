package notify

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
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

// find returns the notices for what happened in the window, without muted causes: first those of runs, which wait for a
// person, then those of causes, each oldest first. Messages can make any number of causes, and few are sent in an hour.
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
	older := func(a, b wire.Notice) int { return cmp.Or(a.At.Compare(b.At), strings.Compare(a.ID, b.ID)) }
	return append(slices.SortedFunc(slices.Values(runs), older), slices.SortedFunc(slices.Values(causes), older)...), nil
}

// causes returns notices of new causes and of those that are back. Causes that look the same to viewers are one, as on
// the dashboard.
func (n *Notifier) causes(ctx context.Context, now time.Time, muted map[string]bool) ([]wire.Notice, error) {
	since := now.Add(-window)
	query := driver.GroupQuery{SeenSince: since, TrendSince: since.Add(-n.cfg.Quiet), Limit: wire.MaxGroups}
	groups, err := n.store.Groups(ctx, query)
	if err == nil && n.cfg.Redaction.HidesText() {
		// A group is not new to people who saw an older one that looks the same.
		recent := groups
		query.SeenSince = time.Time{}
		groups, err = n.store.Groups(ctx, query)
		groups = slices.DeleteFunc(groups, func(g driver.Group) bool { return !g.LastSeen.Before(since) })
		groups = append(groups, recent...)
	}
	if err != nil {
		return nil, err
	}
	quiet := map[string]bool{}
	for i := range groups {
		if muted[groups[i].Fingerprint] {
			quiet[n.cfg.Redaction.Group(groups[i]).Fingerprint] = true
		}
	}
	back := since
	if known := n.cfg.Retention.CompleteSince(now).Add(n.cfg.Quiet); known.After(back) {
		back = known
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
		if again, ok := returned(&g, back, n.cfg.Quiet); !g.FirstSeen.Before(since) {
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
	var runs []redrive.Run
	filter := redrive.RunFilter{States: []redrive.State{redrive.Stopped, redrive.AwaitingApproval}}
	for page := (dlq.Page{Limit: driver.MaxPage}); n.runs != nil; {
		more, next, err := n.runs.Runs(ctx, filter, page)
		if err != nil {
			return nil, err
		}
		if runs, page.After = append(runs, more...), next; next == "" {
			break
		}
	}
	var found []wire.Notice
	for i := range runs {
		run := &runs[i]
		at := run.ChangedAt
		if run.State == redrive.Stopped && !run.StoppedAt.IsZero() {
			at = run.StoppedAt // not that of a later change of its rate
		}
		if at.Before(now.Add(-window)) || muted[run.Spec.Filter.Fingerprint] {
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
		notice := n.noticeOf(kind, fmt.Sprint(run.ID, "\x00", at.UnixNano()), at, text, "runs", shown.ID)
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

// The headers of a signed webhook.
const (
	HeaderID        = "Webhook-Id"
	HeaderTimestamp = "Webhook-Timestamp"
	HeaderSignature = "Webhook-Signature"
)

// StatusError is the error for a receiver's response that is not a success.
type StatusError struct {
	Receiver string
	Status   int
	Header   http.Header
}

// Error names the receiver and the status, and nothing of the response.
func (e *StatusError) Error() string {
	return fmt.Sprintf("notify: receiver %q answered with status %d", e.Receiver, e.Status)
}

// HTTPStatusCode lets pipelines decide whether another attempt makes sense.
func (e *StatusError) HTTPStatusCode() int { return e.Status }

func sign(secret []byte, id, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// responseBytes is how much of a response is read, so that the connection can be reused.
const responseBytes = 4096

func (n *Notifier) post(ctx context.Context, to *Receiver, notice *wire.Notice, body []byte) error {
	if to.Format == Slack {
		body, _ = json.Marshal(map[string]string{"text": slackText(notice)}) // texts always have a JSON form
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to.URL, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("notify: receiver %q: its URL cannot be read", to.Name)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "redrive")
	if to.Format != Slack {
		secret, err := key(to.Secret)
		if err != nil {
			return fmt.Errorf("notify: receiver %q: secret: %w", to.Name, err)
		}
		at := strconv.FormatInt(time.Now().Unix(), 10)
		r.Header.Set(HeaderID, notice.ID)
		r.Header.Set(HeaderTimestamp, at)
		r.Header.Set(HeaderSignature, sign(secret, notice.ID, at, body))
	}
	response, err := n.cfg.Client.Do(r)
	if err != nil {
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			err = wrapped.Err // without the URL, which is a secret with Slack
		}
		return fmt.Errorf("notify: receiver %q: %w", to.Name, err)
	}
	defer func() { _ = response.Body.Close() }() // the receiver has answered
	_, _ = io.CopyN(io.Discard, response.Body, responseBytes)
	if response.StatusCode >= http.StatusMultipleChoices {
		return &StatusError{Receiver: to.Name, Status: response.StatusCode, Header: response.Header}
	}
	return nil
}

var slackEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// slackText is the notice for Slack. Texts from messages in it cannot disguise a link or mention people.
func slackText(notice *wire.Notice) string {
	text := slackEscapes.Replace(notice.Text)
	if notice.Link != "" {
		text += "\n<" + slackEscapes.Replace(notice.Link) + "|Open in Redrive>"
	}
	return text
}
