package wire

import "time"

// Action is an operation on an entry, a run, or something else in a store. Its text appears in the audit log;
// package driver names those on entries.
type Action string

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

	// Entries and Since are set by driver.FoldAudit only.
	Entries []int64   `json:"entries,omitempty" doc:"With fold: the entries of the joined records."`
	Since   time.Time `json:"since,omitzero" doc:"With fold: the time of the first joined record; at is that of the last."`
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

// Notice is a notification: the body of a webhook.
type Notice struct {
	ID    string    `json:"id" doc:"The same for each attempt to send it."`
	Kind  string    `json:"kind" enum:"new_cause,regressed_cause,run_stopped,run_awaits_approval,store_down"`
	At    time.Time `json:"at" doc:"When it happened."`
	Text  string    `json:"text" doc:"For people."`
	Link  string    `json:"link,omitempty" doc:"The page of the dashboard, if server.public_url is configured."`
	Cause *Group    `json:"cause,omitempty"`
	Run   *Run      `json:"run,omitempty"`
}

// Mute is a cause without notifications.
type Mute struct {
	Fingerprint string    `json:"fingerprint"`
	By          string    `json:"by"`
	Note        string    `json:"note,omitempty"`
	At          time.Time `json:"at"`
	Until       time.Time `json:"until,omitzero" doc:"Absent if the mute is permanent."`
}

// MuteRequest mutes a cause.
type MuteRequest struct {
	Seconds float64 `json:"seconds,omitempty" minimum:"0" maximum:"31536000" doc:"How long to mute it; 0 means permanently."`
	Note
}

// MuteList are the muted causes, the latest first.
type MuteList struct {
	Mutes []Mute `json:"mutes" nullable:"false"`
}
