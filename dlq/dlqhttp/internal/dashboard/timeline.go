package dashboard

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

// timelineEvent is an event in the life of a message.
type timelineEvent struct {
	At time.Time
	// Kind chooses the colour: bad, good, move, note.
	Kind, Title string
	Who, Note   string
	// Detail is more text, such as an error.
	Detail string
	Run    string
}

// timeline is the life of a message: its attempts before it died, every redrive and its outcome, and what people did.
func timeline(e *wire.Entry, audit []wire.AuditRecord) []timelineEvent {
	var all []timelineEvent
	add := func(at time.Time, kind, title string) *timelineEvent {
		all = append(all, timelineEvent{At: at, Kind: kind, Title: title})
		return &all[len(all)-1]
	}
	if !e.BrokerTime.IsZero() {
		add(e.BrokerTime, "note", "Published to "+string(e.Topic))
	}
	if first := e.FirstFailureAt; !first.IsZero() && e.Attempts > 1 && first.Before(e.CreatedAt) {
		add(first, "bad", "Attempt 1 failed")
	}
	died := add(e.CreatedAt, "bad", "Died")
	if e.Attempts > 0 && e.DeathRedrive == 0 {
		died.Title = fmt.Sprintf("Died after attempt %d, %s", e.Attempts, e.Reason)
	}
	// The first error is the entry's, unless it has died again since: then the records have it.
	died.Detail = string(e.ErrorMessage)
	again := slices.IndexFunc(audit, func(r wire.AuditRecord) bool { return r.Detail["previous_error"] != "" })
	if again >= 0 {
		died.Detail = audit[again].Detail["previous_error"]
	}
	for i := range audit {
		all = append(all, timelineEventOf(&audit[i]))
	}
	if e.SeenCount > 1 {
		add(e.LastSeenAt, "note", fmt.Sprintf("Reported %d times: the same delivery, kept once", e.SeenCount))
	}
	slices.SortStableFunc(all, func(a, b timelineEvent) int { return cmp.Compare(a.At.UnixMicro(), b.At.UnixMicro()) })
	return all
}

// timelineTitles are the kinds and titles of what happened to an entry; anything else is a note in the action's words.
var timelineTitles = map[driver.Action][2]string{
	driver.ActionRedrive:       {"move", "Redriven"},
	driver.ActionDie:           {"bad", "Died again"},
	driver.ActionSucceed:       {"good", "The consumer handled it"},
	driver.ActionRelease:       {"bad", "Not published: returned"},
	driver.ActionReleaseByHand: {"bad", "Released: its outcome is not waited for"},
	driver.ActionResolve:       {"good", "Resolved"},
	driver.ActionDiscard:       {"note", "Discarded"},
	driver.ActionPark:          {"note", "Parked for a person"},
	driver.ActionRestore:       {"note", "Restored to pending"},
	driver.ActionEdit:          {"move", "Edited: revision "},
	driver.ActionImport:        {"note", "Imported"},
}

func timelineEventOf(r *wire.AuditRecord) timelineEvent {
	m := timelineEvent{
		At: r.At, Kind: "note", Title: words(r.Action), Who: r.Actor, Note: r.Note, Run: r.Run, Detail: r.Detail["error"],
	}
	action := r.Action
	if known, ok := timelineTitles[action]; ok {
		m.Kind, m.Title = known[0], known[1]
	}
	switch {
	case action == driver.ActionEdit:
		m.Title += r.Detail["revision"]
	case action == driver.ActionDie && r.To == dlq.Parked:
		m.Title = "Died again, and its redrives are used up: parked"
	}
	return m
}
