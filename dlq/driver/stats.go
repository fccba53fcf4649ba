package driver

import "time"

// Group is a cause: all entries with the same fingerprint.
type Group struct {
	Fingerprint string
	// Cause is the error without its numbers, ids and quoted values; Sample is one error as it was.
	Cause, Sample       string
	ErrorClass, Handler string
	// Counts has the entries by status.
	Counts Counts
	// FirstSeen and LastSeen are the first and the last death.
	FirstSeen, LastSeen time.Time
	// LastEntry is the entry of the last death.
	LastEntry int64
	// Trend are the hours since GroupQuery.TrendSince; nil when it was not asked for.
	Trend []HourCount
}

// Counts are numbers of entries by status.
type Counts struct {
	Pending, Retrying, Parked, Resolved, Discarded int64
}

// Total is the sum of all.
func (c Counts) Total() int64 { return c.Pending + c.Retrying + c.Parked + c.Resolved + c.Discarded }

// Of is the number of entries with the status.
func (c Counts) Of(s Status) int64 {
	if n := c.at(s); n != nil {
		return *n
	}
	return 0
}

// Add adds n to the number of the status.
func (c *Counts) Add(s Status, n int64) {
	if to := c.at(s); to != nil {
		*to += n
	}
}

// at is the number of the status; nil for one that there is not.
func (c *Counts) at(s Status) *int64 {
	switch s {
	case Pending:
		return &c.Pending
	case Retrying:
		return &c.Retrying
	case Parked:
		return &c.Parked
	case Resolved:
		return &c.Resolved
	case Discarded:
		return &c.Discarded
	default:
		return nil
	}
}

// GroupQuery asks for groups, those with the most entries first.
type GroupQuery struct {
	// Status is the one to rank by; groups without an entry in it are left out. Empty ranks by all entries.
	Status Status
	// Handler and ErrorClass must be equal, CauseText must occur in the cause; zero does not filter.
	Handler, ErrorClass, CauseText string
	// Fingerprint, unless empty, asks for this group alone.
	Fingerprint string
	// SeenSince, unless zero, asks for the groups of which an entry died since then, those that were first seen last in
	// front.
	SeenSince time.Time
	// TrendSince, unless zero, asks for each group's hours since then.
	TrendSince time.Time
	// Limit is at most how many groups. Defaults to [DefaultGroups]; at most [MaxPage].
	Limit int
}

// DefaultGroups is how many groups a query without a limit returns.
const DefaultGroups = 10

// StatsQuery asks for statistics.
type StatsQuery struct {
	// Since is the start of the hourly curve. Defaults to seven days before Now.
	Since time.Time
	// Now is the end of the curve. Defaults to the time of the call.
	Now time.Time
	// TopCauses is how many groups. Defaults to 10; at most [MaxPage].
	TopCauses int
	// Recent asks for Stats.Recent, which counts the entries of the last hour.
	Recent bool
}

// The spans of Stats.Recent: an hour of them ends with the one that Now is in.
const (
	RecentSpan  = 5 * time.Minute
	RecentSpans = 12
)

// Stats are the numbers of a dashboard. They are kept up to date with every change, so reading them scans no entries,
// those of Recent excepted.
type Stats struct {
	Counts Counts
	// ByType and ByTopic split the counts, the most entries first.
	ByType, ByTopic []NamedCounts
	// TopCauses are the groups with the most PENDING entries.
	TopCauses []Group
	// Hourly are the entries created and closed, and those that died again, in each hour since StatsQuery.Since, oldest
	// first; hours without any are left out.
	Hourly []HourCount
	// Recent are the last RecentSpans spans, oldest first, the one that is not over among them; nil when they were not
	// asked for.
	Recent []SpanCount
	// OldestPending is when the longest waiting PENDING entry was created; zero when none waits.
	OldestPending time.Time
	// MeanResolution is the mean time from the first death to RESOLVED; zero when nothing was resolved.
	MeanResolution time.Duration
}

// NamedCounts are the counts of one event type or topic.
type NamedCounts struct {
	Name   string
	Counts Counts
}

// HourCount is how many entries were created in the hour that begins at Hour (UTC), how many were closed in it,
// resolved or discarded, whenever they came, and how many died again: after a redrive, or sent once more after they
// were closed. A death stays in its hour when its entry dies of another cause later, or is purged.
type HourCount struct {
	Hour                     time.Time
	Count, Closed, DiedAgain int64
}

// Deaths are those of new entries and the others.
func (h HourCount) Deaths() int64 { return h.Count + h.DiedAgain }

// SpanCount is how many deaths there were in the span that begins at From (UTC), how many entries were closed in it,
// and how many of the deaths were those of entries that had died before.
type SpanCount struct {
	From                     time.Time
	Count, Closed, DiedAgain int64
}
