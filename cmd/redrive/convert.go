package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"time"
	"unicode/utf8"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqclient"
	"github.com/redrive-go/redrive/envelope"
)

// given is what is sent of a value: nothing of a zero one.
func given[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func some[T any](list []T) *[]T {
	if len(list) == 0 {
		return nil
	}
	return &list
}

// value is what was sent, or the zero value.
func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

func filterTo(f *dlq.Filter) dlqclient.Filter {
	to := dlqclient.Filter{
		Ids: some(f.IDs), Topic: given(f.Topic), Consumer: given(f.Consumer), EventType: given(f.EventType), Handler: given(f.Handler),
		Reason: given(dlqclient.FilterReason(f.Reason)), ErrorClass: given(f.ErrorClass), ErrorCode: given(f.ErrorCode),
		Fingerprint: given(f.Fingerprint), EventId: given(f.EventID), SourceTable: given(f.SourceTable), SourceId: given(f.SourceID),
		CorrelationId: given(f.CorrelationID), Error: given(f.ErrorText), Payload: given(f.PayloadText), Cause: given(f.CauseText),
		From: given(f.From), To: given(f.To), ResolvedBefore: given(f.ResolvedBefore), DiedBefore: given(f.DiedBefore), Run: given(f.Run),
	}
	var statuses []dlqclient.FilterStatuses
	for _, s := range f.Statuses {
		statuses = append(statuses, dlqclient.FilterStatuses(s))
	}
	to.Statuses = some(statuses)
	var fields []string
	for _, field := range f.PayloadFields {
		fields = append(fields, field.String())
	}
	to.PayloadFields = some(fields)
	if f.Redrives != nil {
		n := int64(*f.Redrives)
		to.Redrives = &n
	}
	return to
}

func filterFrom(f *dlqclient.Filter) dlq.Filter {
	from := dlq.Filter{
		IDs: value(f.Ids), Topic: value(f.Topic), Consumer: value(f.Consumer), EventType: value(f.EventType), Handler: value(f.Handler),
		Reason: envelope.Reason(value(f.Reason)), ErrorClass: value(f.ErrorClass), ErrorCode: value(f.ErrorCode),
		Fingerprint: value(f.Fingerprint), EventID: value(f.EventId), SourceTable: value(f.SourceTable), SourceID: value(f.SourceId),
		CorrelationID: value(f.CorrelationId), ErrorText: value(f.Error), PayloadText: value(f.Payload), CauseText: value(f.Cause),
		From: value(f.From), To: value(f.To), ResolvedBefore: value(f.ResolvedBefore), DiedBefore: value(f.DiedBefore), Run: value(f.Run),
	}
	for _, s := range value(f.Statuses) {
		from.Statuses = append(from.Statuses, dlq.Status(s))
	}
	for _, text := range value(f.PayloadFields) {
		if field, err := dlq.ParsePayloadField(text); err == nil { // what a server shows, it has read
			from.PayloadFields = append(from.PayloadFields, field)
		}
	}
	if f.Redrives != nil {
		n := int(*f.Redrives)
		from.Redrives = &n
	}
	return from
}

// paramsOf is a filter as the parameters of a URL, whose fields have the names of the filter's in the body, but for the statuses.
func paramsOf[P any](f *dlq.Filter, more map[string]any) (*P, error) {
	data, err := json.Marshal(filterTo(f))
	if err != nil {
		return nil, err
	}
	fields := map[string]any{}
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	if statuses, ok := fields["statuses"]; ok {
		fields["status"] = statuses
		delete(fields, "statuses")
	}
	if len(f.IDs) > 0 {
		fields["ids"] = f.IDs // not as floating point numbers
	}
	maps.Copy(fields, more)
	if data, err = json.Marshal(fields); err != nil {
		return nil, err
	}
	params := new(P)
	return params, json.Unmarshal(data, params)
}

func pageOf(p dlq.Page) map[string]any {
	fields := map[string]any{}
	if p.Limit != 0 {
		fields["limit"] = p.Limit
	}
	if p.Order != "" {
		fields["order"] = p.Order
	}
	if p.After != "" {
		fields["cursor"] = p.After
	}
	return fields
}

func entryFrom(e *dlqclient.Entry) (*dlq.Entry, error) {
	return &dlq.Entry{
		ID: e.Id, EventID: e.EventId, EventType: e.EventType, SourceTable: value(e.SourceTable), SourceID: value(e.SourceId),
		CorrelationID: value(e.CorrelationId),
		Origin: envelope.Origin{
			Broker: value(e.Broker), Topic: e.Topic, Consumer: value(e.Consumer), Exchange: value(e.Exchange), RoutingKey: value(e.RoutingKey),
			Partition: e.Partition, Offset: e.Offset, Position: value(e.Position), Timestamp: value(e.BrokerTime),
		},
		Handler: value(e.Handler), Reason: envelope.Reason(e.Reason), ErrorMessage: e.ErrorMessage, ErrorCode: value(e.ErrorCode),
		ErrorClass: value(e.ErrorClass), Rule: value(e.Rule), Cause: e.Cause, Fingerprint: e.Fingerprint, Attempts: int(e.Attempts),
		Status: dlq.Status(e.Status), Version: e.Version, RedriveCount: int(e.RedriveCount), RedriveBudget: int(e.RedriveBudget),
		DeathRedrive: int(e.DeathRedrive), SeenCount: int(e.SeenCount), LeaseUntil: value(e.LeaseUntil), Run: value(e.Run),
		CreatedAt: e.CreatedAt, FirstFailureAt: value(e.FirstFailureAt), DiedAt: e.DiedAt, LastSeenAt: value(e.LastSeenAt),
		LastRedriveAt: value(e.LastRedriveAt), SucceededAt: value(e.SucceededAt), ResolvedAt: value(e.ResolvedAt),
		ResolvedBy: value(e.ResolvedBy), ChangedAt: value(e.ChangedAt), ChangedBy: value(e.ChangedBy), Revision: int(e.Revision), Size: e.Size,
	}, nil
}

// detailFrom is an entry with its body. The generator has put the entry's fields beside the body; they are read again as an entry.
func detailFrom(d *dlqclient.EntryDetail) (*dlq.Entry, error) {
	data, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	var plain dlqclient.Entry
	if err := json.Unmarshal(data, &plain); err != nil {
		return nil, err
	}
	e, err := entryFrom(&plain)
	if err != nil {
		return nil, err
	}
	b := &d.Body
	e.Body = &dlq.Body{
		Revision: int(b.Revision), UUID: value(b.Uuid), Payload: []byte(value(b.Payload)), Headers: b.Headers, ContentType: value(b.ContentType),
		Trace: value(b.StackTrace),
	}
	if b.PayloadBase64 != nil {
		if e.Body.Payload, err = base64.StdEncoding.DecodeString(*b.PayloadBase64); err != nil {
			return nil, fmt.Errorf("the server's payload of entry %d: %w", e.ID, err)
		}
	}
	return e, nil
}

func countsFrom(c *dlqclient.Counts) dlq.Counts {
	return dlq.Counts{Pending: c.Pending, Retrying: c.Retrying, Parked: c.Parked, Resolved: c.Resolved, Discarded: c.Discarded}
}

func hoursFrom(hours []dlqclient.HourCount) []dlq.HourCount {
	var list []dlq.HourCount
	for _, h := range hours {
		list = append(list, dlq.HourCount{Hour: h.Hour, Count: h.Count, Closed: h.Closed})
	}
	return list
}

func groupsFrom(groups []dlqclient.Group) []dlq.Group {
	var list []dlq.Group
	for i := range groups {
		g := &groups[i]
		list = append(list, dlq.Group{
			Fingerprint: g.Fingerprint, Cause: g.Cause, Sample: g.Sample, ErrorClass: value(g.ErrorClass), Handler: value(g.Handler),
			Counts: countsFrom(&g.Counts), FirstSeen: g.FirstSeen, LastSeen: g.LastSeen, LastEntry: g.LastEntry, Trend: hoursFrom(value(g.Trend)),
		})
	}
	return list
}

func statsFrom(s *dlqclient.Stats) dlq.Stats {
	named := func(counts []dlqclient.NamedCounts) []dlq.NamedCounts {
		var list []dlq.NamedCounts
		for _, c := range counts {
			list = append(list, dlq.NamedCounts{Name: c.Name, Counts: countsFrom(&c.Counts)})
		}
		return list
	}
	return dlq.Stats{
		Counts: countsFrom(&s.Counts), ByType: named(s.ByType), ByTopic: named(s.ByTopic), TopCauses: groupsFrom(s.TopCauses),
		Hourly: hoursFrom(s.Hourly), OldestPending: value(s.OldestPending),
		MeanResolution: time.Duration(s.MeanResolutionSeconds * float64(time.Second)),
	}
}

func auditFrom(records []dlqclient.AuditRecord) []dlq.AuditRecord {
	var list []dlq.AuditRecord
	for i := range records {
		r := &records[i]
		list = append(list, dlq.AuditRecord{
			ID: r.Id, At: r.At, Actor: r.Actor, Action: dlq.Action(r.Action), Note: value(r.Note), EntryID: value(r.EntryId), Run: value(r.Run),
			From: dlq.Status(value(r.From)), To: dlq.Status(value(r.To)), Version: value(r.Version), Detail: value(r.Detail),
		})
	}
	return list
}

func editTo(e *dlq.Edit) dlqclient.Edit {
	to := dlqclient.Edit{Jq: given(e.JQ), RemoveHeaders: some(e.RemoveHeaders)}
	if len(e.SetHeaders) > 0 {
		to.SetHeaders = &e.SetHeaders
	}
	switch {
	case e.Payload == nil:
	case utf8.Valid(e.Payload):
		text := string(e.Payload)
		to.Payload = &text
	default:
		text := base64.StdEncoding.EncodeToString(e.Payload)
		to.PayloadBase64 = &text
	}
	return to
}

func diffFrom(d *dlqclient.Diff) dlq.Diff {
	diff := dlq.Diff{PayloadChanged: d.PayloadChanged, Binary: d.Binary, Before: int(d.Before), After: int(d.After)}
	for i := range d.Headers {
		h := &d.Headers[i]
		diff.Headers = append(diff.Headers, dlq.HeaderDiff{
			Name: h.Name, Before: value(h.Before), After: value(h.After), Added: value(h.Added), Removed: value(h.Removed),
		})
	}
	for _, l := range d.Lines {
		op := byte(' ')
		if l.Op != "" {
			op = l.Op[0]
		}
		diff.Lines = append(diff.Lines, dlq.DiffLine{Op: op, Text: l.Text})
	}
	return diff
}

func specTo(s *dlq.RunSpec) dlqclient.RunSpec {
	to := dlqclient.RunSpec{
		Id: given(s.ID), Filter: filterTo(&s.Filter), Limit: given(s.Limit), Rate: given(s.Rate), MaxOut: given(int64(s.MaxOut)),
		Jq: given(s.JQ), Target: given(s.Target), CloseOnPublish: given(s.CloseOnPublish), Paused: given(s.Paused),
		OutcomeTimeoutSeconds: given(s.OutcomeTimeout.Seconds()),
	}
	var canary []int64
	for _, step := range s.Canary {
		canary = append(canary, int64(step))
	}
	to.Canary = some(canary)
	if s.Stop != (dlq.StopRule{}) {
		to.Stop = &dlqclient.StopRule{Share: given(s.Stop.Share), MinSample: given(int64(s.Stop.MinSample))}
	}
	return to
}

func specFrom(s *dlqclient.RunSpec) dlq.RunSpec {
	from := dlq.RunSpec{
		ID: value(s.Id), Filter: filterFrom(&s.Filter), Limit: value(s.Limit), Rate: value(s.Rate), MaxOut: int(value(s.MaxOut)),
		JQ: value(s.Jq), Target: value(s.Target), CloseOnPublish: value(s.CloseOnPublish), Paused: value(s.Paused),
		OutcomeTimeout: time.Duration(value(s.OutcomeTimeoutSeconds) * float64(time.Second)),
	}
	for _, step := range value(s.Canary) {
		from.Canary = append(from.Canary, int(step))
	}
	if s.Stop != nil {
		from.Stop = dlq.StopRule{Share: value(s.Stop.Share), MinSample: int(value(s.Stop.MinSample))}
	}
	return from
}

func runCountsFrom(c *dlqclient.RunCounts) dlq.RunCounts {
	return dlq.RunCounts{
		Waiting: c.Waiting, Claimed: c.Claimed, Out: c.Out, Succeeded: c.Succeeded, Failed: c.Failed, Lost: c.Lost, Skipped: c.Skipped,
	}
}

func runFrom(r *dlqclient.Run) *dlq.Run {
	return &dlq.Run{
		ID: r.Id, Spec: specFrom(&r.Spec), State: dlq.RunState(r.State), Cause: value(r.Cause), Version: r.Version, CreatedAt: r.CreatedAt,
		CreatedBy: r.CreatedBy, Note: value(r.Note), ChangedAt: r.ChangedAt, ChangedBy: r.ChangedBy, ApprovalAbove: r.ApprovalAbove,
		NeedsApproval: value(r.NeedsApproval), ApprovedBy: value(r.ApprovedBy), ApprovedAt: value(r.ApprovedAt), StartedAt: value(r.StartedAt),
		FinishedAt: value(r.FinishedAt), ResumedAt: value(r.ResumedAt), Baseline: runCountsFrom(&r.Baseline), Counts: runCountsFrom(&r.Counts),
		Holder: value(r.Holder), LeaseUntil: value(r.LeaseUntil), FrozenTo: r.FrozenTo, FreezeTo: r.FreezeTo,
	}
}

func itemsFrom(items []dlqclient.RunItem) []dlq.RunItem {
	var list []dlq.RunItem
	for i := range items {
		item := &items[i]
		list = append(list, dlq.RunItem{
			EntryID: item.EntryId, State: dlq.ItemState(item.State), Detail: value(item.Detail), Version: item.Version, Revision: int(item.Revision),
			Redrive: int(value(item.Redrive)), ClaimedUntil: value(item.ClaimedUntil), SettledAt: value(item.SettledAt),
		})
	}
	return list
}

func previewFrom(p *dlqclient.RunPreview) (*dlq.RunPreview, error) {
	preview := &dlq.RunPreview{Spec: specFrom(&p.Spec), Count: p.Count, NeedsApproval: p.NeedsApproval}
	for _, t := range p.Topics {
		preview.Topics = append(preview.Topics, dlq.TopicCount{Topic: t.Topic, Count: t.Count})
	}
	for i := range p.Sample {
		s := &p.Sample[i]
		e, err := detailFrom(&s.Entry)
		if err != nil {
			return nil, err
		}
		sample := dlq.SampleEntry{Entry: *e, Problem: value(s.Problem)}
		if s.Diff != nil {
			sample.Diff = diffFrom(s.Diff)
		}
		preview.Sample = append(preview.Sample, sample)
	}
	return preview, nil
}
