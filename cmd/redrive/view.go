package main

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

var entryColumns = []column[wire.Entry]{
	{title: "ID", right: true, gives: whole, value: func(e wire.Entry) string { return driver.FormatID(e.ID) }},
	{title: "Status", value: func(e wire.Entry) string { return string(e.Status) }},
	{title: "Topic", value: func(e wire.Entry) string { return oneLine(e.Topic, 32) }},
	{title: "Consumer", wide: true, value: func(e wire.Entry) string { return oneLine(e.Consumer, 32) }},
	{title: "Handler", wide: true, value: func(e wire.Entry) string { return oneLine(e.Handler, 32) }},
	{title: "Reason", value: func(e wire.Entry) string { return e.Reason }},
	{title: "Error", value: func(e wire.Entry) string { return oneLine(e.ErrorMessage, 60) }},
	{title: "Class", wide: true, value: func(e wire.Entry) string { return oneLine(e.ErrorClass, 40) }},
	{title: "Group", wide: true, value: func(e wire.Entry) string { return e.Fingerprint }},
	{title: "Attempts", wide: true, right: true, value: func(e wire.Entry) string { return strconv.Itoa(e.Attempts) }},
	{title: "Redrives", right: true, gives: drops, value: func(e wire.Entry) string { return strconv.Itoa(e.RedriveCount) }},
	{title: "Died", value: func(e wire.Entry) string { return stampOf(e.DiedAt) }},
	{title: "Message", gives: drops, value: func(e wire.Entry) string { return oneLine(e.EventID, 36) }},
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
func oneLine[T ~string](text T, limit int) string {
	runes := []rune(printable(string(text), false))
	if len(runes) <= limit {
		return string(runes)
	}
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
