package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// retentionData is what a purge would remove.
type retentionData struct {
	Days      string
	Resolved  bool
	Discarded bool
	Archive   bool
	// Asked means that a preview was requested.
	Asked   bool
	Count   int64
	Before  time.Time
	Sample  []dlq.Entry
	Kept    dlq.Retention
	Current driver.Counts
}

// defaultDays is how long resolved entries are kept by default.
const defaultDays = 90

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

func (d *dashboard) retention(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	data := retentionData{Days: strconv.Itoa(defaultDays), Resolved: true, Archive: true, Kept: d.cfg.Retention}
	s, _, err := d.snapshot(r.Context())
	if err != nil {
		return err
	}
	data.Current = s.Stats.Counts
	if q.Has("days") {
		p, err := purgeOf(q, d.cfg.Manager.Now(r.Context()))
		if err != nil {
			return err
		}
		data.Asked, data.Days, data.Before = true, q.Get("days"), p.ClosedBefore
		data.Resolved, data.Discarded, data.Archive = q.Get("resolved") != "", q.Get("discarded") != "", !p.SkipArchive
		filter := dlq.Filter{Statuses: p.Statuses, ResolvedBefore: p.ClosedBefore}
		if data.Count, err = d.cfg.Manager.Count(r.Context(), filter, 0); err != nil {
			return err
		}
		l, err := d.cfg.Manager.List(r.Context(), filter, dlq.Page{Limit: 5, Order: driver.OldestFirst})
		if err != nil {
			return err
		}
		data.Sample = d.cfg.Visible(r.Context()).ShownEntries(l.Entries)
	}
	return d.page(w, r, "retention", view{Title: "Retention", Nav: "retention", Data: &data})
}

// purge removes the entries of the preview: those closed before its time.
func (d *dashboard) purge(w http.ResponseWriter, r *http.Request) error {
	p, err := purgeOf(r.PostForm, d.cfg.Manager.Now(r.Context()))
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
		return &fault{
			status: http.StatusUnprocessableEntity, title: "Say that you are sure",
			detail: "Nothing was removed. Go back and tick the box: a purge cannot be undone by a button.",
		}
	}
	by, err := d.by(r)
	if err != nil {
		return err
	}
	p.Actor, p.Note = by.Actor, by.Note
	return d.inBackground(w, r, "Purging closed entries", "/retention", func(ctx context.Context) (string, error) {
		n, err := d.cfg.Manager.Purge(ctx, p)
		said := plural(int64(n), "entry", "entries") + " purged"
		if !p.SkipArchive {
			said += " into the archive"
		}
		return said + ".", err
	})
}
