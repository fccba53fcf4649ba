package main

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

// entryView is an entry in the output for programs.
type entryView struct {
	ID            int64             `json:"id"`
	Status        string            `json:"status"`
	EventID       string            `json:"event_id"`
	EventType     string            `json:"event_type"`
	Broker        string            `json:"broker,omitempty"`
	Topic         string            `json:"topic"`
	Consumer      string            `json:"consumer,omitempty"`
	Exchange      string            `json:"exchange,omitempty"`
	RoutingKey    string            `json:"routing_key,omitempty"`
	RedriveTo     string            `json:"redrive_to,omitempty"`
	Position      string            `json:"position,omitempty"`
	Handler       string            `json:"handler,omitempty"`
	Reason        string            `json:"reason"`
	ErrorMessage  string            `json:"error_message"`
	ErrorClass    string            `json:"error_class,omitempty"`
	ErrorCode     string            `json:"error_code,omitempty"`
	Rule          string            `json:"rule,omitempty"`
	Cause         string            `json:"cause"`
	Fingerprint   string            `json:"fingerprint"`
	Attempts      int               `json:"attempts"`
	RetryCount    int               `json:"retry_count"`
	MaxRetries    int               `json:"max_retries"`
	SeenCount     int               `json:"seen_count"`
	SourceTable   string            `json:"source_table,omitempty"`
	SourceID      string            `json:"source_id,omitempty"`
	CorrelationID string            `json:"correlation_id,omitempty"`
	TraceID       string            `json:"trace_id,omitempty"`
	CreatedAt     time.Time         `json:"created_at"`
	DiedAt        time.Time         `json:"died_at"`
	LastRetryAt   time.Time         `json:"last_retry_at,omitzero"`
	LeaseUntil    time.Time         `json:"lease_until,omitzero"`
	ResolvedAt    time.Time         `json:"resolved_at,omitzero"`
	ResolvedBy    string            `json:"resolved_by,omitempty"`
	Run           string            `json:"run,omitempty"`
	Version       int64             `json:"version"`
	Size          int64             `json:"size"`
	Headers       map[string]string `json:"headers,omitempty"`
	Payload       *string           `json:"payload,omitempty"`
	PayloadBase64 []byte            `json:"payload_base64,omitempty"`
	StackTrace    string            `json:"stack_trace,omitempty"`
}

func viewOf(e *dlq.Entry) entryView {
	v := entryView{
		ID: e.ID, Status: string(e.Status), EventID: e.EventID, EventType: e.EventType, Broker: e.Origin.Broker,
		Topic: e.Origin.Topic, Consumer: e.Origin.Consumer, Exchange: e.Origin.Exchange, RoutingKey: e.Origin.RoutingKey,
		RedriveTo: e.Origin.RedriveTo,
		Position:  e.Origin.Position, Handler: e.Handler, Reason: string(e.Reason), ErrorMessage: e.ErrorMessage,
		ErrorClass: e.ErrorClass, ErrorCode: e.ErrorCode, Rule: e.Rule, Cause: e.Cause, Fingerprint: e.Fingerprint,
		Attempts: e.Attempts, RetryCount: e.RedriveCount, MaxRetries: e.RedriveBudget, SeenCount: e.SeenCount,
		SourceTable: e.SourceTable, SourceID: e.SourceID, CorrelationID: e.CorrelationID, CreatedAt: e.CreatedAt,
		DiedAt: e.DiedAt, LastRetryAt: e.LastRedriveAt, LeaseUntil: e.LeaseUntil, ResolvedAt: e.ResolvedAt,
		ResolvedBy: e.ResolvedBy, Run: e.Run, Version: e.Version, Size: e.Size,
	}
	if b := e.Body; b != nil {
		v.Headers, v.StackTrace, v.TraceID = b.Headers, b.Trace, envelope.TraceID(b.Headers)
		if utf8.Valid(b.Payload) {
			text := string(b.Payload)
			v.Payload = &text
		} else {
			v.PayloadBase64 = b.Payload
		}
	}
	return v
}

func viewsOf(entries []dlq.Entry) []entryView {
	views := make([]entryView, 0, len(entries))
	for i := range entries {
		views = append(views, viewOf(&entries[i]))
	}
	return views
}

var entryColumns = []column[entryView]{
	{title: "ID", right: true, gives: whole, value: func(v entryView) string { return driver.FormatID(v.ID) }},
	{title: "Status", value: func(v entryView) string { return v.Status }},
	{title: "Topic", value: func(v entryView) string { return oneLine(v.Topic, 32) }},
	{title: "Consumer", wide: true, value: func(v entryView) string { return oneLine(v.Consumer, 32) }},
	{title: "Handler", wide: true, value: func(v entryView) string { return oneLine(v.Handler, 32) }},
	{title: "Reason", value: func(v entryView) string { return v.Reason }},
	{title: "Error", value: func(v entryView) string { return oneLine(v.ErrorMessage, 60) }},
	{title: "Class", wide: true, value: func(v entryView) string { return oneLine(v.ErrorClass, 40) }},
	{title: "Group", wide: true, value: func(v entryView) string { return v.Fingerprint }},
	{title: "Attempts", wide: true, right: true, value: func(v entryView) string { return strconv.Itoa(v.Attempts) }},
	{title: "Redrives", right: true, gives: drops, value: func(v entryView) string { return strconv.Itoa(v.RetryCount) }},
	{title: "Died", value: func(v entryView) string { return stampOf(v.DiedAt) }},
	{title: "Message", gives: drops, value: func(v entryView) string { return oneLine(v.EventID, 36) }},
}

// plural is a number and what it counts.
func plural[N int | int64](n N, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return strconv.FormatInt(int64(n), 10) + " " + thing
}

func deadLetters(n int64) string { return plural(n, "dead letter") }

// stampLayout is how tables write times; a table that is fitted to a terminal makes them relative.
const stampLayout = "2006-01-02 15:04:05Z"

func stampOf(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(stampLayout)
}

// oneLine makes text fit for a cell: no control characters, which would control the terminal, and at most this many
// runes.
func oneLine(text string, limit int) string {
	text = printable(text, false)
	if utf8.RuneCountInString(text) <= limit {
		return text
	}
	runes := []rune(text)
	return string(runes[:limit-1]) + "…"
}

// printable replaces what a terminal would execute: anyone can write messages.
func printable(text string, lines bool) string {
	return strings.Map(func(r rune) rune {
		switch {
		case lines && (r == '\n' || r == '\t'):
			return r
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case r < ' ' || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069:
			return utf8.RuneError
		}
		return r
	}, text)
}
