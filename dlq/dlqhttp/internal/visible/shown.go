package visible

import (
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redrive"
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

// ShownRun is a copy of a run.
func (v View) ShownRun(r *redrive.Run) *redrive.Run { return &redrive.Run{Run: v.Run(r)} }

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
		shown[i].RunItem = v.Item(&items[i])
	}
	return shown
}
