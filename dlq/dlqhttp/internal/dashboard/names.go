package dashboard

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

// takes names a run by its entries: an id means nothing to a person.
func takes(run *redrive.Run, cause func(fingerprint string) string) string {
	f := &run.Spec.Filter
	used := search{Filter: *f}
	var parts []string
	if f.Fingerprint != "" {
		parts = append(parts, oneLine(70, cause(f.Fingerprint)))
	}
	for _, c := range used.Chips("group", "to") { // every run has the time until which it was frozen
		parts = append(parts, c.Label+" "+oneLine(50, c.Value))
	}
	for _, s := range f.Statuses {
		if s != dlq.Pending {
			parts = append(parts, words(s))
		}
	}
	what := strings.Join(parts, ", ")
	if n := run.Counts.Total(); n > 0 {
		if what == "" {
			return plural(n, "entry", "entries") + ", all that were pending"
		}
		return plural(n, "entry", "entries") + ": " + what
	}
	if what == "" {
		return "everything pending"
	}
	return what
}

// namedRun is a run with its name.
type namedRun struct {
	redrive.Run

	Name string
}

// named gives runs names that the caller may see.
func (d *dashboard) named(r *http.Request, runs []redrive.Run) []namedRun {
	list := make([]namedRun, 0, len(runs))
	for i := range runs {
		list = append(list, namedRun{runs[i], d.nameOf(r, &runs[i])})
	}
	return list
}

func (d *dashboard) nameOf(r *http.Request, run *redrive.Run) string {
	return takes(run, func(fingerprint string) string {
		groups, _, err := cached(r.Context(), d.cache, "cause "+fingerprint,
			func(ctx context.Context) ([]driver.Group, error) {
				return d.cfg.Manager.Groups(ctx, dlq.GroupQuery{Fingerprint: fingerprint, Limit: 1})
			})
		if err != nil || len(groups) == 0 { // it was purged, or the store is down: use the less readable name
			return "cause " + fingerprint
		}
		return d.cfg.Visible(r.Context()).Groups(groups)[0].Cause
	})
}

// auditRow is a row of the log: a record, or many of one run with the same content for one entry each.
type auditRow struct {
	driver.AuditRecord

	// IDs are the entries of a row.
	IDs []int64
	// Name is the run's.
	Name string
}

// folded joins the records of a run that have the same content into one row.
func folded(records []driver.AuditRecord) []auditRow {
	var rows []auditRow
	for _, r := range wire.FoldAudit(records) {
		row := auditRow{AuditRecord: r, IDs: r.Entries}
		if row.IDs == nil && r.EntryID != 0 {
			row.IDs = []int64{r.EntryID}
		}
		rows = append(rows, row)
	}
	return rows
}

// auditRows folds records, and names their runs.
func (d *dashboard) auditRows(r *http.Request, records []driver.AuditRecord) []auditRow {
	rows := folded(records)
	sees := d.cfg.Visible(r.Context())
	for i := range rows {
		id := rows[i].Run
		if id == "" {
			continue
		}
		run, _, err := cached(r.Context(), d.cache, "named "+id, func(ctx context.Context) (*redrive.Run, error) {
			return d.cfg.Runner.Run(ctx, id)
		})
		rows[i].Name = "run " + oneLine(13, id)
		if err == nil {
			rows[i].Name = d.nameOf(r, sees.ShownRun(run)) //nolint:contextcheck // of the request
		}
	}
	return rows
}

// maxBadge is the largest number in the menu.
const maxBadge = 99

// awaiting is how many runs wait for the caller's approval, for the menu.
func (d *dashboard) awaiting(r *http.Request) string {
	p := access.From(r.Context())
	if d.cfg.ReadOnly || !p.Role.Allows(access.Approver) {
		return ""
	}
	runs, _, err := cached(r.Context(), d.cache, "awaiting", func(ctx context.Context) ([]redrive.Run, error) {
		waiting := redrive.RunFilter{States: []redrive.State{redrive.AwaitingApproval}}
		runs, _, err := d.cfg.Runner.Runs(ctx, waiting, dlq.Page{Limit: maxBadge + 1})
		return runs, err
	})
	if err != nil {
		return "" // the page itself shows that the store is down
	}
	n := len(slices.DeleteFunc(slices.Clone(runs), func(run redrive.Run) bool {
		return driver.Person(run.CreatedBy) == driver.Person(p.Name)
	}))
	switch {
	case n == 0:
		return ""
	case n > maxBadge:
		return strconv.Itoa(maxBadge) + "+"
	default:
		return strconv.Itoa(n)
	}
}
