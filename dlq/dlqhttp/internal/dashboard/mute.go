package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

// annotations are what people have recorded about causes: which are muted, and the newest notes.
type annotations struct {
	mutes []driver.Mute
	notes []driver.AuditRecord
	// canMute reports whether the store supports mutes.
	canMute bool
}

// maxNotes is how many notes, on all causes, the page of one cause searches.
const maxNotes = 500

// annotations reads what people have recorded about causes.
func (d *dashboard) annotations(ctx context.Context) (annotations, error) {
	s, _, err := cached(ctx, d.cache, "said of causes", func(ctx context.Context) (s annotations, err error) {
		s.mutes, err = d.cfg.Manager.Mutes(ctx)
		s.canMute = err == nil
		if err != nil && !errors.Is(err, dlq.ErrNoNotices) {
			return s, err
		}
		s.notes, _, err = d.cfg.Manager.AuditLog(ctx, dlq.AuditFilter{Action: driver.ActionNote}, dlq.Page{Limit: maxNotes})
		return s, err
	})
	return s, err
}

// muted finds a cause among the muted ones.
func (s *annotations) muted(fingerprint string) (driver.Mute, bool) {
	at := slices.IndexFunc(s.mutes, func(m driver.Mute) bool { return m.Fingerprint == fingerprint })
	if at < 0 {
		return driver.Mute{}, false
	}
	return s.mutes[at], true
}

// about adds what people have said about the cause to its page.
func (g *groupData) about(d *dashboard, r *http.Request, s *annotations) {
	sees, fingerprint := d.cfg.Visible(r.Context()), g.Cause.Fingerprint
	g.CanMute = s.canMute
	if m, is := s.muted(fingerprint); is {
		g.Mute = &sees.Mutes([]driver.Mute{m})[0]
	}
	var notes []driver.AuditRecord
	for i := range s.notes {
		if s.notes[i].Detail[driver.DetailFingerprint] == fingerprint {
			notes = append(notes, s.notes[i])
		}
	}
	g.Notes = sees.Audit(notes)
}

// mutePeriods are how long a cause can be muted; 0 means until it is unmuted.
var mutePeriods = []time.Duration{time.Hour, 8 * time.Hour, 24 * time.Hour, 7 * 24 * time.Hour, 0}

// changeCause adds a note to a cause, or mutes or unmutes its notifications.
func (d *dashboard) changeCause(w http.ResponseWriter, r *http.Request) error {
	ctx, fingerprint := r.Context(), r.PathValue("fingerprint")
	if err := d.cfg.Visible(ctx).SearchGroups(ctx, &dlq.GroupQuery{Fingerprint: fingerprint}); err != nil {
		return err
	}
	by, err := d.by(r)
	if err != nil {
		return err
	}
	var done string
	switch do := r.PostForm.Get("do"); do {
	case "note":
		done, err = "Your note is kept with the cause.", d.note(ctx, fingerprint, by)
	case "mute":
		var period time.Duration
		if period, err = time.ParseDuration(r.PostForm.Get("period")); err != nil || !slices.Contains(mutePeriods, period) {
			return invalid("period %q", r.PostForm.Get("period"))
		}
		_, err = d.cfg.Manager.Mute(ctx, fingerprint, period, by)
		done = "No one is notified of this cause until you unmute it."
		if period > 0 {
			done = "No one is notified of this cause for " + age(period) + "."
		}
	case "unmute":
		done, err = "This cause notifies again.", d.cfg.Manager.Unmute(ctx, fingerprint, by)
	default:
		err = invalid("action %q", do)
	}
	d.forget()
	if err != nil {
		return err
	}
	d.see(w, r, "/groups/"+url.PathEscape(fingerprint), done)
	return nil
}

// note records a person's note on a cause.
func (d *dashboard) note(ctx context.Context, fingerprint string, by dlq.By) error {
	if by.Note == "" {
		return invalid("the note is empty")
	}
	groups, err := d.cfg.Manager.Groups(ctx, dlq.GroupQuery{Fingerprint: fingerprint, Limit: 1})
	if err == nil && len(groups) == 0 {
		err = fmt.Errorf("group %.64q: %w", fingerprint, dlq.ErrNotFound)
	}
	if err != nil {
		return err
	}
	return d.cfg.Manager.Record(ctx, driver.AuditRecord{
		At: d.cfg.Manager.Now(ctx).UTC(), Actor: by.Actor, Action: driver.ActionNote, Note: by.Note,
		Detail: map[string]string{driver.DetailFingerprint: fingerprint},
	})
}

// aboutCause is what people have said about a cause, for its page.
type aboutCause struct {
	CanMute bool
	Mute    *wire.Mute
	Notes   []driver.AuditRecord
}

// Periods are how long it can be muted.
func (aboutCause) Periods() []time.Duration { return mutePeriods }
