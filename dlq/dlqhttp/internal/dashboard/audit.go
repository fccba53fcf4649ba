package dashboard

import (
	"context"
	"html/template"
	"net/http"
	"net/url"
	"strings"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// auditData is a page of the audit log.
type auditData struct {
	Records []auditRow
	Actor   string
	Action  string
	Entry   string
	Run     string
	Next    template.URL
	First   bool
	Actions []dlq.Action
}

// auditActions are what the log can be asked for.
var auditActions = []dlq.Action{
	dlq.ActionRedrive, dlq.ActionSucceed, dlq.ActionDie, dlq.ActionRelease, dlq.ActionReleaseByHand,
	dlq.ActionResolve, dlq.ActionDiscard, dlq.ActionPark, dlq.ActionRestore,
	dlq.ActionEdit, dlq.ActionImport, dlq.ActionPurge, dlq.ActionUnarchive, redrive.ActionStart, redrive.ActionApprove, redrive.ActionReject,
	redrive.ActionPause, redrive.ActionResume, redrive.ActionCancel, redrive.ActionStop, redrive.ActionComplete, redrive.ActionAdjust,
	driver.ActionPauseIntake, driver.ActionResumeIntake, driver.ActionMute, driver.ActionUnmute, driver.ActionNote,
	driver.ActionLogin, driver.ActionLogout, driver.ActionCreateToken, driver.ActionRevokeToken,
	dlq.ActionRefused, dlq.ActionRead,
}

const auditSize = 50

func (d *dashboard) audit(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	data := auditData{
		Actor: strings.TrimSpace(q.Get("actor")), Action: q.Get("action"), Entry: strings.TrimSpace(q.Get("entry")),
		Run: strings.TrimSpace(q.Get("run")), First: q.Get("after") == "", Actions: auditActions,
	}
	if err := d.cfg.Visible(r.Context()).Values(data.Actor, data.Run); err != nil {
		return err
	}
	f := dlq.AuditFilter{Actor: data.Actor, Action: dlq.Action(data.Action), Run: data.Run}
	if data.Entry != "" {
		id, err := dlq.ParseID(data.Entry)
		if err != nil {
			return err
		}
		f.EntryID = id
	}
	type answer struct {
		records []dlq.AuditRecord
		next    string
	}
	page := dlq.Page{Limit: auditSize, After: q.Get("after")}
	a, at, err := cached(r.Context(), d.cache, "audit "+q.Encode(), func(ctx context.Context) (a answer, err error) {
		a.records, a.next, err = d.cfg.Manager.AuditLog(ctx, f, page)
		return a, err
	})
	if err != nil {
		return err
	}
	data.Records = d.auditRows(r, d.cfg.Visible(r.Context()).ShownAudit(a.records))
	if a.next != "" {
		next := url.Values{"actor": {data.Actor}, "action": {data.Action}, "entry": {data.Entry}, "run": {data.Run}, "after": {a.next}}
		data.Next = query(next)
	}
	return d.page(w, r, "audit", view{Title: "Audit log", Nav: "audit", Live: true, At: at, Data: &data})
}
