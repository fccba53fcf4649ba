package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/driver"
)

// by is the caller, with the note from the form.
func (d *dashboard) by(r *http.Request) (dlq.By, error) {
	by := dlq.By{Actor: access.From(r.Context()).Name, Note: strings.TrimSpace(r.PostForm.Get("note"))}
	if text := r.PostForm.Get("version"); text != "" {
		version, err := driver.ParseID(text)
		if err != nil {
			return by, invalid("version %q", text)
		}
		by.Version = version
	}
	return by, nil
}

// bulkAction is an action on many entries.
type bulkAction struct {
	Do               driver.Action
	Verb, Done, Help string
}

var bulkActions = map[string]bulkAction{
	"resolve": {
		driver.ActionResolve, "Resolve", "resolved",
		"They are taken care of: the cause is fixed elsewhere, and nothing is sent.",
	},
	"discard": {
		driver.ActionDiscard, "Discard", "discarded",
		"They are given up. They are kept, and can be restored until they are purged.",
	},
	"park": {
		driver.ActionPark, "Park", "parked",
		"They wait for a person: neither rules nor runs over pending entries take them.",
	},
	"restore": {driver.ActionRestore, "Restore", "restored", "They are pending again."},
}

// confirmData is shown before many entries are changed.
type confirmData struct {
	Action  bulkAction
	Search  search
	Chips   []chip
	Count   int64
	Sample  []dlq.Entry
	Back    string
	Current driver.Counts
}

// chosen reads which entries are meant: the selected ones, or all that match the filter.
func chosen(q url.Values, now time.Time) (search, error) {
	if q.Get("scope") != "all" {
		if len(q["pick"]) == 0 {
			return search{}, &fault{
				status: http.StatusUnprocessableEntity, title: "Nothing is selected",
				detail: "Go back and tick some entries, or choose all that match.",
			}
		}
		q = url.Values{"id": q["pick"]}
	}
	s, err := parseSearch(q, now)
	if err != nil {
		return s, err
	}
	return s.Frozen(now), nil
}

// confirm counts before acting. Redriving many entries is a run, which has a separate page.
func (d *dashboard) confirm(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	s, err := chosen(q, d.cfg.Manager.Now(r.Context()))
	if err != nil {
		return err
	}
	if q.Get("do") == "redrive" {
		w.Header().Set("Location", d.cfg.Prefix+"/runs/new?"+string(s.Query()))
		w.WriteHeader(http.StatusSeeOther)
		return nil
	}
	if err := d.sees(r.Context(), &s.Filter, ""); err != nil {
		return err
	}
	data := confirmData{Back: "/entries?" + string(s.Query())}
	var known bool
	if data.Action, known = bulkActions[q.Get("do")]; !known {
		return invalid("action %q", q.Get("do"))
	}
	if len(s.Filter.Statuses) == 0 {
		s.Filter.Statuses = data.Action.Do.From() // as the change itself does
	}
	data.Search, data.Chips = s, s.Chips()
	if data.Count, err = d.cfg.Manager.Count(r.Context(), s.Filter, 0); err != nil {
		return err
	}
	l, err := d.cfg.Manager.List(r.Context(), s.Filter, dlq.Page{Limit: 5})
	if err != nil {
		return err
	}
	data.Sample = d.cfg.Visible(r.Context()).ShownEntries(l.Entries)
	return d.page(w, r, "confirm", view{Title: data.Action.Verb, Nav: "entries", Data: &data})
}

// act changes the counted entries. If that takes longer than a person waits, it continues in the background.
func (d *dashboard) act(w http.ResponseWriter, r *http.Request) error {
	action, known := bulkActions[r.PostForm.Get("do")]
	if !known {
		return invalid("action %q", r.PostForm.Get("do"))
	}
	form := url.Values{}
	for name, values := range r.PostForm {
		if name != "note" && name != "do" && name != "version" {
			form[name] = values
		}
	}
	s, err := parseSearch(form, d.cfg.Manager.Now(r.Context()))
	if err != nil {
		return err
	}
	if len(s.values()) == 0 { // a truncated form must not mean everything
		return invalid("the form names no entries")
	}
	if err := d.sees(r.Context(), &s.Filter, ""); err != nil {
		return err
	}
	by, err := d.by(r)
	if err != nil {
		return err
	}
	by.Version = 0
	const back = "/entries?status=PENDING"
	return d.inBackground(w, r, action.Verb+" entries", back, func(ctx context.Context) (string, error) {
		bulk, err := d.cfg.Manager.ChangeAll(ctx, action.Do, s.Filter, by)
		said := plural(bulk.Changed, "entry", "entries") + " " + action.Done + "."
		if bulk.Refused > 0 {
			said += " " + number(bulk.Refused) + " left alone, because someone else was faster."
		}
		return said, err
	})
}
