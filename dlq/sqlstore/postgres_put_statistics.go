package sqlstore

import (
	"cmp"
	"time"
)

// The statistics of new letters go to the server as the few groups, counts and hours that they are in, and a number of each with every
// letter: which of the letters are new, and what id they get, only the server knows.

// newStatisticsNames are the parameters of putNewStatement that newStatistics makes.
var newStatisticsNames = []string{
	"in_group", "is_last", "in_count", "in_hour",
	"group_fingerprint", "cause", "sample", "group_class", "group_handler", "group_first", "group_last",
	"count_type", "count_topic", "hour", "hour_fingerprint",
}

// newStatistics are the values of newStatisticsNames. Groups, counts and hours are in the order in which every transaction locks them.
func newStatistics(letters []letterRow) []any {
	var all deltas
	for i := range letters {
		all.add(letters[i].Entry)
	}
	groups := sortedKeys(all.groups, cmp.Compare[string])
	counts := sortedKeys(all.counts, compareCounts)
	hours := sortedKeys(all.hours, compareHours)
	groupAt, countAt, hourAt := numbers(groups), numbers(counts), numbers(hours)

	inGroup, isLast := make([]int32, len(letters)), make([]bool, len(letters))
	inCount, inHour := make([]int32, len(letters)), make([]int32, len(letters))
	for i := range letters {
		e := letters[i].Entry
		inGroup[i], isLast[i] = groupAt[e.Fingerprint], all.groups[e.Fingerprint].entry == e
		inCount[i] = countAt[countKey{e.EventType, e.Origin.Topic}]
		inHour[i] = hourAt[hourKey{e.CreatedAt.Truncate(time.Hour), e.Fingerprint}]
	}
	group := func(text func(g *groupDelta) string) []string {
		return mapped(groups, func(key string) string { return text(all.groups[key]) })
	}
	return []any{
		inGroup, isLast, inCount, inHour,
		groups,
		group(func(g *groupDelta) string { return g.entry.Cause }),
		group(func(g *groupDelta) string { return g.entry.ErrorMessage }),
		group(func(g *groupDelta) string { return g.entry.ErrorClass }),
		group(func(g *groupDelta) string { return g.entry.Handler }),
		mapped(groups, func(key string) time.Time { return all.groups[key].first.UTC() }),
		mapped(groups, func(key string) time.Time { return all.groups[key].last.UTC() }),
		mapped(counts, func(key countKey) string { return key.eventType }),
		mapped(counts, func(key countKey) string { return key.topic }),
		mapped(hours, func(key hourKey) time.Time { return key.hour.UTC() }),
		mapped(hours, func(key hourKey) string { return key.fingerprint }),
	}
}

// numbers are the places of keys in a list, from 1 as WITH ORDINALITY counts.
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
