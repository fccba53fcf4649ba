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
	Actions []driver.Action
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

func (d *dashboard) audit(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	data := auditData{
		Actor: strings.TrimSpace(q.Get("actor")), Action: q.Get("action"), Entry: strings.TrimSpace(q.Get("entry")),
		Run: strings.TrimSpace(q.Get("run")), First: q.Get("after") == "", Actions: auditActions,
	}
	if err := d.cfg.Visible(r.Context()).Values(data.Actor, data.Run); err != nil {
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
	type answer struct {
		records []driver.AuditRecord
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
	data.Records = d.auditRows(r, d.cfg.Visible(r.Context()).Audit(a.records))
	if a.next != "" {
		next := url.Values{
			"actor": {data.Actor}, "action": {data.Action}, "entry": {data.Entry}, "run": {data.Run},
			"after": {a.next},
		}
		data.Next = query(next)
	}
	return d.page(w, r, "audit", view{Title: "Audit log", Nav: "audit", Live: true, At: at, Data: &data})
}
