package driver

import (
	"time"

	"github.com/redrive-go/redrive/dlq/wire"
)

// The numbers of causes; see package wire.
type (
	// Group is a cause: all entries with the same fingerprint.
	Group = wire.Group
	// Counts are numbers of entries by status.
	Counts = wire.Counts
	// NamedCounts are the counts of one event type or topic.
	NamedCounts = wire.NamedCounts
	// HourCount is how many entries were created in an hour, how many were closed, and how many died again.
	HourCount = wire.HourCount
)

// GroupQuery selects groups, those with the most entries first.
type GroupQuery struct {
	// Status is the one to rank by; groups without an entry in it are left out. If empty, groups are ranked by all
	// entries.
	Status Status
	// Handler and ErrorClass must be equal, CauseText must occur in the cause; zero does not filter.
	Handler, ErrorClass, CauseText string
	// Fingerprint, unless empty, selects only this group.
	Fingerprint string
	// SeenSince, unless zero, selects the groups with a death since then, sorted by their first death, the latest first.
	SeenSince time.Time
	// TrendSince, unless zero, requests each group's hours since then.
	TrendSince time.Time
	// Limit is the maximum number of groups. Defaults to [DefaultGroups]; at most [MaxPage].
	Limit int
}

// DefaultGroups is how many groups a query without a limit returns.
const DefaultGroups = 10

// StatsQuery selects statistics.
type StatsQuery struct {
	// Since is the start of the hourly curve. Defaults to seven days before Now.
	Since time.Time
	// Now is the end of the curve. Defaults to the time of the call.
	Now time.Time
	// TopCauses is the number of groups. Defaults to 10; at most [MaxPage].
	TopCauses int
	// Recent requests Stats.Recent, which counts the entries of the last hour.
	Recent bool
}

// The spans of Stats.Recent: an hour of them, up to the current one.
const (
	RecentSpan  = 5 * time.Minute
	RecentSpans = 12
)

// Stats are the numbers of a dashboard. They are maintained with every change, so that reading them scans no entries,
// except for Recent.
type Stats struct {
	Counts Counts
	// ByType and ByTopic group the counts, the most entries first.
	ByType, ByTopic []NamedCounts
	// TopCauses are the groups with the most PENDING entries.
	TopCauses []Group
	// Hourly has the entries created and closed, and those that died again, in each hour since StatsQuery.Since, oldest
	// first; hours without any are left out.
	Hourly []HourCount
	// Recent has the last RecentSpans spans, oldest first, including the current one; nil unless requested.
	Recent []SpanCount
	// OldestPending is when the oldest PENDING entry was created; zero without one.
	OldestPending time.Time
	// MeanResolution is the mean time from the first death to RESOLVED; zero when nothing was resolved.
	MeanResolution time.Duration
}

// SpanCount has how many deaths there were in the span that begins at From (UTC), how many entries were closed in it,
// and how many of the deaths were repeated ones.
type SpanCount struct {
	From                     time.Time
	Count, Closed, DiedAgain int64
}
