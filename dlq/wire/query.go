package wire

import "time"

// Page selects a part of a list. The zero Page is the first 50, newest first.
type Page struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"50" doc:"At most so many."`
	Order  string `query:"order" enum:"newest,oldest,stored-first,stored-last" default:"newest"`
	Cursor string `query:"cursor" maxLength:"200" doc:"next of the page before."`
}

// GroupQuery selects causes.
type GroupQuery struct {
	Status     string `query:"status" enum:"PENDING,RETRYING,PARKED,RESOLVED,DISCARDED" doc:"Rank by the entries in this status, and leave out groups without any. Defaults to all entries."`
	Handler    string `query:"handler"`
	ErrorClass string `query:"error_class"`
	Cause      string `query:"cause" doc:"Text that occurs in the cause."`

	Fingerprint string    `query:"fingerprint" doc:"This group alone."`
	TrendSince  time.Time `query:"trend_since" doc:"Give each group's hours since then."`

	Limit int `query:"limit" minimum:"1" maximum:"1000" default:"10" doc:"At most so many."`
}

// StatsQuery selects statistics.
type StatsQuery struct {
	Since     time.Time `query:"since" doc:"The start of the hourly curve. Defaults to seven days ago."`
	TopCauses int       `query:"top_causes" minimum:"1" maximum:"1000" default:"10" doc:"At most so many causes."`
}

// AuditQuery selects audit records; zero fields do not filter.
type AuditQuery struct {
	EntryID int64     `query:"entry_id" minimum:"1"`
	Run     string    `query:"run"`
	Actor   string    `query:"actor"`
	Action  string    `query:"action" doc:"redrive, resolve, edit, run start, ..."`
	From    time.Time `query:"from" doc:"At or after."`
	To      time.Time `query:"to" doc:"Before."`
	Fold    bool      `query:"fold" doc:"Make one record of those of a page that say the same of entries of a run."`
}

// RunQuery selects runs; zero fields do not filter.
type RunQuery struct {
	State     []string `query:"state" nullable:"false" enum:"preparing,awaiting_approval,running,paused,stopped,completed,cancelled" doc:"Runs in any of these."`
	CreatedBy string   `query:"created_by"`
	Active    bool     `query:"active" doc:"Only those for which there is something to do."`
}

// ItemQuery selects the entries of a run.
type ItemQuery struct {
	State string `query:"state" enum:"waiting,claimed,out,succeeded,failed,lost,skipped"`
	After int64  `query:"after" minimum:"0" doc:"Continue after this entry."`
	Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"50" doc:"At most so many."`
}

// ReviewQuery is how many entries of a run to review.
type ReviewQuery struct {
	Sample int `query:"sample" minimum:"1" maximum:"100" default:"10" doc:"How many entries to show."`
}
