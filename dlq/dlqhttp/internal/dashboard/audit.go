package dashboard

import (
	"context"
	"html/template"
	"net/url"
	"strings"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

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
