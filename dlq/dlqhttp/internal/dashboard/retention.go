package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

// retentionData is what a purge would remove.
type retentionData struct {
	Days                         string
	Resolved, Discarded, Archive bool
	// Asked means that a preview was requested.
	Asked   bool
	Count   int64
	Before  time.Time
	Sample  []wire.Entry
	Kept    dlq.Retention
	Current driver.Counts
}

// defaultDays is how long resolved entries are kept by default.
const defaultDays = "90"

// purgeOf reads a purge from a form.
func purgeOf(q url.Values, now time.Time) (dlq.Purge, error) {
	days, err := strconv.Atoi(q.Get("days"))
	if err != nil || days < 0 || days > 36500 {
		return dlq.Purge{}, invalid("days %q: a number from 0", q.Get("days"))
	}
	p := dlq.Purge{
		ClosedBefore: now.UTC().Truncate(time.Second).Add(-time.Duration(days) * 24 * time.Hour),
		SkipArchive:  q.Get("archive") == "",
	}
	if q.Get("resolved") != "" {
		p.Statuses = append(p.Statuses, dlq.Resolved)
	}
	if q.Get("discarded") != "" {
		p.Statuses = append(p.Statuses, dlq.Discarded)
	}
	if len(p.Statuses) == 0 {
		return p, invalid("choose resolved, discarded, or both: nothing else is ever purged")
	}
	return p, nil
}

func (r *request) retention() error {
	q := r.Form
	data := retentionData{Days: defaultDays, Resolved: true, Archive: true, Kept: r.cfg.Retention, Asked: q.Has("days")}
	s, _, err := r.snapshot()
	if err != nil {
		return err
	}
	data.Current = s.Stats.Counts
	if data.Asked {
		p, err := purgeOf(q, r.now())
		if err != nil {
			return err
		}
		data.Days, data.Before, data.Archive = q.Get("days"), p.ClosedBefore, !p.SkipArchive
		data.Resolved, data.Discarded = q.Get("resolved") != "", q.Get("discarded") != ""
		filter := dlq.Filter{Statuses: p.Statuses, ResolvedBefore: p.ClosedBefore}
		l, err := r.cfg.Listing(r.Context(), filter, dlq.Page{Limit: 5, Order: driver.OldestFirst}, 0)
		if err != nil {
			return err
		}
		data.Count, data.Sample = l.Count, r.sees.Entries(l.Entries)
	}
	return r.page("retention", view{Title: "Retention", Nav: "retention", Data: &data})
}

// purge removes the entries of the preview: those closed before its time.
func (r *request) purge() error {
	p, err := purgeOf(r.PostForm, r.now())
	if err != nil {
		return err
	}
	before, err := parseTime(r.PostForm.Get("before"))
	if err != nil {
		return err
	}
	if !before.IsZero() && before.Before(p.ClosedBefore) {
		p.ClosedBefore = before // never more than was previewed
	}
	if r.PostForm.Get("sure") == "" {
		return newFault(http.StatusUnprocessableEntity, "Confirm the purge",
			"Nothing was removed. Go back and tick the box: no button undoes a purge.", nil)
	}
	by := r.by()
	p.Actor, p.Note = by.Actor, by.Note
	return r.inBackground("Purging closed entries", "/retention", func(ctx context.Context) (string, error) {
		n, err := r.cfg.Manager.Purge(ctx, p)
		said := plural(n, "entry", "entries") + " purged"
		if !p.SkipArchive {
			said += " into the archive"
		}
		return said + ".", err
	})
}
