package dashboard

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
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
func timeline(e *dlq.Entry, audit []driver.AuditRecord) []timelineEvent {
	var all []timelineEvent
	if t := e.Origin.Timestamp; !t.IsZero() {
		all = append(all, timelineEvent{At: t, Kind: "note", Title: "Published to " + e.Origin.Topic})
	}
	if first := e.FirstFailureAt; !first.IsZero() && e.Attempts > 1 && first.Before(e.CreatedAt) {
		all = append(all, timelineEvent{At: first, Kind: "bad", Title: "Attempt 1 failed"})
	}
	// The first error is the entry's, unless it has died again since: then the records have it.
	firstError := e.ErrorMessage
	for _, r := range audit {
		if r.Action == driver.ActionDie && r.Detail["previous_error"] != "" {
			firstError = r.Detail["previous_error"]
			break
		}
	}
	died := timelineEvent{At: e.CreatedAt, Kind: "bad", Title: "Died", Detail: firstError}
	if e.Attempts > 0 && e.DeathRedrive == 0 {
		died.Title = fmt.Sprintf("Died after attempt %d, %s", e.Attempts, e.Reason)
	}
	all = append(all, died)
	for _, r := range audit {
		all = append(all, timelineEventOf(r))
	}
	if e.SeenCount > 1 {
		all = append(all, timelineEvent{
			At: e.LastSeenAt, Kind: "note",
			Title: fmt.Sprintf("Reported %d times: the same delivery, kept once", e.SeenCount),
		})
	}
	slices.SortStableFunc(all, func(a, b timelineEvent) int { return cmp.Compare(a.At.UnixMicro(), b.At.UnixMicro()) })
	return all
}

func timelineEventOf(r driver.AuditRecord) timelineEvent {
	m := timelineEvent{At: r.At, Kind: "note", Who: r.Actor, Note: r.Note, Run: r.Run}
	switch r.Action {
	case driver.ActionRedrive:
		m.Kind, m.Title = "move", "Redriven"
	case driver.ActionDie:
		m.Kind, m.Title, m.Detail = "bad", "Died again", r.Detail["error"]
		if r.To == dlq.Parked {
			m.Title = "Died again, and its redrives are used up: parked"
		}
	case driver.ActionSucceed:
		m.Kind, m.Title = "good", "The consumer handled it"
	case driver.ActionRelease:
		m.Kind, m.Title = "bad", "Not published: returned"
	case driver.ActionReleaseByHand:
		m.Kind, m.Title = "bad", "Released: its outcome is not waited for"
	case driver.ActionResolve:
		m.Kind, m.Title = "good", "Resolved"
	case driver.ActionDiscard:
		m.Title = "Discarded"
	case driver.ActionPark:
		m.Title = "Parked for a person"
	case driver.ActionRestore:
		m.Title = "Restored to pending"
	case driver.ActionEdit:
		m.Kind, m.Title = "move", "Edited: revision "+r.Detail["revision"]
	case driver.ActionImport:
		m.Title = "Imported"
	default:
		m.Title = words(r.Action)
	}
	return m
}
