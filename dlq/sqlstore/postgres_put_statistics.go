package sqlstore

import (
	"cmp"
	"time"
)

// The statistics of new letters are sent to the server as the few distinct groups, counts and hours, and a number of
// each with every letter: only the server knows which of the letters are new, and their ids.

// newStatisticsNames are the parameters of dlq_put_letters that newStatistics makes.
var newStatisticsNames = []string{
	"in_group", "in_count", "in_hour",
	"group_fingerprint", "group_cause", "group_sample", "group_class", "group_handler", "group_first", "group_last",
	"group_at", "group_new", "count_type", "count_topic", "count_new", "hour_at", "hour_fingerprint", "hour_new",
}

// newStatistics are the values of newStatisticsNames. Groups, counts and hours are in the order in which every
// transaction locks them.
func newStatistics(letters []letterRow) []any {
	var all deltas
	for i := range letters {
		all.add(letters[i].Entry)
	}
	groups := sortedKeys(all.groups, cmp.Compare[string])
	counts := sortedKeys(all.counts, compareCounts)
	hours := sortedKeys(all.hours, compareHours)
	groupAt, countAt, hourAt := numbers(groups), numbers(counts), numbers(hours)

	inGroup, inCount, inHour := make([]int32, len(letters)), make([]int32, len(letters)), make([]int32, len(letters))
	last := make([]int32, len(groups))
	for i := range letters {
		e := letters[i].Entry
		inGroup[i] = groupAt[e.Fingerprint]
		inCount[i] = countAt[countKey{e.EventType, e.Origin.Topic}]
		inHour[i] = hourAt[hourKey{hourOf(e.CreatedAt), e.Fingerprint}]
		if all.groups[e.Fingerprint].entry == e {
			last[inGroup[i]-1] = int32(i + 1)
		}
	}
	group := func(text func(g *groupDelta) string) []string {
		return mapped(groups, func(key string) string { return text(all.groups[key]) })
	}
	return []any{
		inGroup, inCount, inHour, groups, group(func(g *groupDelta) string { return g.entry.Cause }),
		group(func(g *groupDelta) string { return g.entry.ErrorMessage }),
		group(func(g *groupDelta) string { return g.entry.ErrorClass }),
		group(func(g *groupDelta) string { return g.entry.Handler }),
		mapped(groups, func(key string) time.Time { return all.groups[key].first.UTC() }),
		mapped(groups, func(key string) time.Time { return all.groups[key].last.UTC() }),
		last,
		mapped(groups, func(key string) int64 { return all.groups[key].counts.Pending }),
		mapped(counts, func(key countKey) string { return key.eventType }),
		mapped(counts, func(key countKey) string { return key.topic }),
		mapped(counts, func(key countKey) int64 { return all.counts[key].counts.Pending }),
		mapped(hours, func(key hourKey) time.Time { return key.hour.UTC() }),
		mapped(hours, func(key hourKey) string { return key.fingerprint }),
		mapped(hours, func(key hourKey) int64 { return all.hours[key].entries }),
	}
}

// numbers are the positions of keys in a list, from 1 as WITH ORDINALITY counts.
func numbers[K comparable](keys []K) map[K]int32 {
	at := make(map[K]int32, len(keys))
	for i, key := range keys {
		at[key] = int32(i + 1)
	}
	return at
}

func mapped[K, V any](keys []K, value func(K) V) []V {
	values := make([]V, len(keys))
	for i, key := range keys {
		values[i] = value(key)
	}
	return values
}
