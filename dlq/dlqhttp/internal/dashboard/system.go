package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

// systemData is what runs here and how it is configured. None of it can be changed from a browser.
type systemData struct {
	Health             wire.Health
	Topology, Settings []token
	NoPlan             string // why there is no topology
	Rules              []redrive.Rule
	Retention          dlq.Retention
	Targets            []string
	CanSend            bool
}

// document is what JSON can show, as the page draws it.
func document(value any) ([]token, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false) // the template does
	encoder.SetIndent("", "  ")
	err := encoder.Encode(value)
	return tokens(out.String()), err
}

func (r *request) system() error {
	s, at, err := r.snapshot()
	if err != nil {
		return err
	}
	data := systemData{
		Health: r.sees.Health(s.Health), Rules: r.sees.Rules(r.cfg.Rules), Retention: r.cfg.Retention,
		Targets: r.cfg.Runner.Targets(), CanSend: r.cfg.Manager.CanRedrive(),
		NoPlan: "This server has no brokers, or its program does not report them.",
	}
	if r.cfg.Topology != nil {
		plan, _, err := cached(r.Context(), r.cache, "topology", r.cfg.Topology)
		if err != nil {
			data.NoPlan = "The topology is not available: " + r.sees.Text(err.Error())
		} else if plan, err = r.sees.JSON(plan); err != nil {
			return err
		} else if data.Topology, err = document(plan); err != nil {
			return err
		}
	}
	if r.who.Role.Allows(access.Admin) && r.cfg.Settings != nil {
		if data.Settings, err = document(r.cfg.Settings); err != nil {
			return err
		}
	}
	return r.page("system", view{Title: "System", Nav: "system", Live: true, At: at, Data: &data})
}

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

// auditData is a page of the audit log.
type auditData struct {
	Records                   []auditRow
	Actor, Action, Entry, Run string
	Next                      template.URL
	First                     bool
	Actions                   []driver.Action
}

// auditActions are the choices of the log's filter.
var auditActions = []driver.Action{
	driver.ActionRedrive, driver.ActionSucceed, driver.ActionDie, driver.ActionRelease, driver.ActionReleaseByHand,
	driver.ActionResolve, driver.ActionDiscard, driver.ActionPark, driver.ActionRestore,
	driver.ActionEdit, driver.ActionImport, driver.ActionPurge, driver.ActionUnarchive, redrive.ActionStart,
	redrive.ActionApprove, redrive.ActionReject,
	redrive.ActionPause, redrive.ActionResume, redrive.ActionCancel, redrive.ActionStop, redrive.ActionComplete,
	redrive.ActionAdjust,
	driver.ActionPauseIntake, driver.ActionResumeIntake, driver.ActionMute, driver.ActionUnmute, driver.ActionNote,
	driver.ActionLogin, driver.ActionLogout, driver.ActionCreateToken, driver.ActionRevokeToken,
	driver.ActionRefused, driver.ActionRead,
}

const auditSize = 50

func (r *request) audit() error {
	q := r.Form
	data := auditData{
		Actor: strings.TrimSpace(q.Get("actor")), Action: q.Get("action"), Entry: strings.TrimSpace(q.Get("entry")),
		Run: strings.TrimSpace(q.Get("run")), First: q.Get("after") == "", Actions: auditActions,
	}
	if err := r.sees.Values(data.Actor, data.Run); err != nil {
		return err
	}
	f := dlq.AuditFilter{Actor: data.Actor, Action: driver.Action(data.Action), Run: data.Run}
	if data.Entry != "" {
		id, err := driver.ParseID(data.Entry)
		if err != nil {
			return err
		}
		f.EntryID = id
	}
	page := dlq.Page{Limit: auditSize, After: q.Get("after")}
	records, next, at, err := cachedPair(r.Context(), r.cache, "audit "+q.Encode(),
		func(ctx context.Context) ([]driver.AuditRecord, string, error) {
			return r.cfg.Manager.AuditLog(ctx, f, page)
		})
	if err != nil {
		return err
	}
	data.Records = r.auditRows(driver.FoldAudit(r.sees.Audit(records)))
	if next != "" {
		data.Next = query(url.Values{
			"actor": {data.Actor}, "action": {data.Action}, "entry": {data.Entry}, "run": {data.Run}, "after": {next},
		})
	}
	return r.page("audit", view{Title: "Audit log", Nav: "audit", Live: true, At: at, Data: &data})
}

// auditRow is a record of the log, or several with the same content, and the name of its run.
type auditRow struct {
	wire.AuditRecord

	Name string
}

// auditRows names the runs of records.
func (r *request) auditRows(records []wire.AuditRecord) []auditRow {
	rows := make([]auditRow, len(records))
	for i := range records {
		rows[i].AuditRecord = records[i]
		id := records[i].Run
		if id == "" {
			continue
		}
		run, _, err := cached(r.Context(), r.cache, "named "+id, func(ctx context.Context) (*redrive.Run, error) {
			return r.cfg.Runner.Run(ctx, id)
		})
		rows[i].Name = "run " + oneLine(13, id)
		if err == nil {
			rows[i].Name = r.nameOf(new(r.sees.Run(run, r.now())))
		}
	}
	return rows
}
