package visible

import (
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

// The pages use the manager's own types. The visible part of a value is its JSON form, read back.

// ShownEntry is a copy with the visible part of an entry, including its body if it has one.
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
	_ = shown.SetWire(&w) // we made the digest
	return shown
}

// ShownStats is a copy of statistics.
func (v View) ShownStats(s *driver.Stats) driver.Stats {
	var shown driver.Stats
	w := v.Stats(s)
	shown.SetWire(&w)
	return shown
}

// ShownRun is a copy of a run.
func (v View) ShownRun(r *redrive.Run) *redrive.Run {
	shown := &redrive.Run{}
	w := v.Run(r)
	_ = shown.SetWire(&w) // its filter was valid before
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
	wires := make([]wire.RunItem, len(items))
	for i := range items {
		wires[i] = v.Item(&items[i])
	}
	return readBack(wires, (*redrive.Item).SetWire)
}

// ShownAudit are copies of audit records.
func (v View) ShownAudit(records []driver.AuditRecord) []driver.AuditRecord {
	return readBack(v.Audit(records), (*driver.AuditRecord).SetWire)
}

// readBack converts a list of JSON forms.
func readBack[T, W any](wires []W, set func(*T, *W)) []T {
	list := make([]T, len(wires))
	for i := range wires {
		set(&list[i], &wires[i])
	}
	return list
}
