package visible

import (
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// The pages are made of the manager's own types. What may be shown of one is its JSON form, read back.

// ShownEntry is a copy with what may be shown of an entry, its body included if it has one.
func (v View) ShownEntry(e *dlq.Entry) *dlq.Entry {
	shown := &dlq.Entry{}
	w := v.Entry(e)
	shown.SetWire(&w)
	if e.Body != nil {
		shown.Body = v.ShownBody(e.Body)
	}
	return shown
}

// ShownEntries are copies of entries.
func (v View) ShownEntries(entries []dlq.Entry) []dlq.Entry {
	shown := make([]dlq.Entry, len(entries))
	for i := range entries {
		shown[i] = *v.ShownEntry(&entries[i])
	}
	return shown
}

// ShownBody is a copy of a body.
func (v View) ShownBody(b *dlq.Body) *dlq.Body {
	shown := &dlq.Body{}
	w := v.Body(b)
	_ = shown.SetWire(&w) // the digest is one of ours
	return shown
}

// ShownGroups are copies of groups.
func (v View) ShownGroups(groups []dlq.Group) []dlq.Group {
	wires := v.Groups(groups)
	shown := make([]dlq.Group, len(wires))
	for i := range wires {
		shown[i].SetWire(&wires[i])
	}
	return shown
}

// ShownStats is a copy of statistics.
func (v View) ShownStats(s *dlq.Stats) dlq.Stats {
	var shown dlq.Stats
	w := v.Stats(s)
	shown.SetWire(&w)
	return shown
}

// ShownRun is a copy of a run.
func (v View) ShownRun(r *redrive.Run) *redrive.Run {
	shown := &redrive.Run{}
	w := v.Run(r)
	_ = shown.SetWire(&w) // what stands in its filter was read before
	return shown
}

// ShownRuns are copies of runs.
func (v View) ShownRuns(runs []redrive.Run) []redrive.Run {
	shown := make([]redrive.Run, len(runs))
	for i := range runs {
		shown[i] = *v.ShownRun(&runs[i])
	}
	return shown
}

// ShownItems are copies of a run's entries.
func (v View) ShownItems(items []redrive.Item) []redrive.Item {
	shown := make([]redrive.Item, len(items))
	for i := range items {
		w := v.Item(&items[i])
		shown[i].SetWire(&w)
	}
	return shown
}

// ShownAudit are copies of audit records.
func (v View) ShownAudit(records []dlq.AuditRecord) []dlq.AuditRecord {
	wires := v.Audit(records)
	shown := make([]dlq.AuditRecord, len(wires))
	for i := range wires {
		shown[i].SetWire(&wires[i])
	}
	return shown
}

// ShownRecurrence is a copy of a report.
func (v View) ShownRecurrence(r *dlq.Recurrence) *dlq.Recurrence {
	shown := &dlq.Recurrence{}
	w := v.Recurrence(r)
	shown.SetWire(&w)
	return shown
}
