package wire

import "time"

// Action is an operation on an entry, a run, or something else in a store. Its text appears in the audit log.
type Action string

// From returns the states in which an entry allows the action. An overdue RETRYING entry also allows what reserves,
// closes or parks it, see driver.Entry.Overdue.
func (a Action) From() []Status {
	switch a {
	case "redrive", "resolve", "discard", "edit":
		return []Status{Pending, Parked}
	case "park":
		return []Status{Pending}
	case "published", "release", "release by hand":
		return []Status{Retrying}
	case "succeed":
		// PENDING and PARKED as well: the message of a redrive that timed out may succeed after its claim was released.
		return []Status{Retrying, Pending, Parked}
	case "restore":
		return []Status{Resolved, Discarded, Parked}
	default:
		return nil
	}
}

// AuditRecord is one record of the audit log: written in the transaction of its change, and never changed.
type AuditRecord struct {
	ID     int64     `json:"id"`
	At     time.Time `json:"at"`
	Actor  string    `json:"actor"`
	Action Action    `json:"action"`
	Note   string    `json:"note,omitempty"`
	// EntryID is the entry, which may no longer exist. Run is the redrive run that made the change, if any.
	EntryID int64  `json:"entry_id,omitempty"`
	Run     string `json:"run,omitempty"`
	From    Status `json:"from,omitempty" doc:"The status before."`
	To      Status `json:"to,omitempty" doc:"The status after."`
	Version int64  `json:"version,omitempty" doc:"The version after."`
	// Detail has more about the change, by name: for example the error that a new death replaced.
	Detail map[string]string `json:"detail,omitempty"`

	// Entries and Since are set by [FoldAudit] only.
	Entries []int64   `json:"entries,omitempty" doc:"With fold: the entries of the joined records."`
	Since   time.Time `json:"since,omitzero" doc:"With fold: the time of the first joined record; at is that of the last."`
}

// FoldAudit joins the records of a run that have the same content, in place of the newest. Outcomes are reported by
// consumers, which do not know the run: consecutive ones are joined.
func FoldAudit(records []AuditRecord) []AuditRecord {
	type key struct {
		run, actor string
		action     Action
		to         Status
	}
	rows, at := make([]AuditRecord, 0, len(records)), map[key]int{}
	for i := range records {
		r := records[i]
		k := key{r.Run, r.Actor, r.Action, r.To}
		n, there := at[k]
		if there && r.EntryID != 0 && (r.Run != "" || n == len(rows)-1 && (r.Action == "succeed" || r.Action == "die")) {
			row := &rows[n]
			if len(row.Entries) == 0 {
				row.Entries = []int64{row.EntryID}
			}
			row.Entries, row.Since = append(row.Entries, r.EntryID), r.At
			continue
		}
		if r.EntryID != 0 {
			at[k] = len(rows)
		}
		rows = append(rows, r)
	}
	return rows
}

// AuditFilter selects audit records; zero fields do not filter.
type AuditFilter struct {
	EntryID int64     `query:"entry_id" minimum:"1"`
	Run     string    `query:"run"`
	Actor   string    `query:"actor"`
	Action  Action    `query:"action" doc:"redrive, resolve, edit, run start, ..."`
	From    time.Time `query:"from" doc:"At or after."`
	To      time.Time `query:"to" doc:"Before."`
}

// AuditQuery selects audit records, and how to show them.
type AuditQuery struct {
	AuditFilter
	Fold bool `query:"fold" doc:"Join the records of a page that differ only in the entry of a run."`
}

// AuditList is a page of the audit log.
type AuditList struct {
	Records []AuditRecord `json:"records" nullable:"false"`
	Next    string        `json:"next,omitempty" doc:"The cursor of the next page; absent on the last."`
}
