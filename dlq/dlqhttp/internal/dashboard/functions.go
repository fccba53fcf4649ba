package dashboard

import (
	"encoding/json"
	"fmt"
	"html/template"
	"iter"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// functions are the functions of the templates.
var functions = template.FuncMap{
	"number": number, "short": short, "since": func(now, t time.Time) string { return age(now.Sub(t)) }, "age": age,
	"until": until,
	"stamp": stamp, "iso": func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) },
	"lower": func(v any) string { return strings.ToLower(fmt.Sprint(v)) }, "percent": percent, "size": size,
	"one": oneLine, "words": words, "path": url.PathEscape, "json": toJSON, "list": func(v ...any) []any { return v },
	"add": func(a, b int64) int64 { return a + b }, "query": url.QueryEscape, "safeq": safeQuery, "plural": plural,
	"statuses": driver.Statuses, "itemstates": redrive.ItemStates, "rule": ruleText,
	"int64": func(n int) int64 { return int64(n) }, "bytes": func(n int) int64 { return int64(n) },
	"op": func(op string) string { return diffClasses[op] }, "sign": func(op string) string { return diffSigns[op] }, "rate": rateText,
	"progress":   func(r redrive.Run, now time.Time) redrive.Progress { return r.Progress(now) },
	"percentage": percentage, "share": func(n, of int64) int { return percentage(float64(n) / float64(max(of, 1))) },
	"revisions": func(last int) []int { return append(slices.Collect(revisions(last)), last) },
}

func mapKeys[K comparable, V any](m map[K]V) iter.Seq[K] { return maps.Keys(m) }

// safeQuery returns the query of a request, cleaned of everything else.
func safeQuery(text string) template.URL {
	q, err := url.ParseQuery(text)
	if err != nil {
		return ""
	}
	return query(q)
}

// number is a count with separated thousands.
func number(n int64) string {
	digits := strconv.FormatInt(n, 10)
	sign := ""
	if digits[0] == '-' {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// short is a rate in as few characters as possible.
func short(n float64) string {
	switch {
	case n >= 1e6:
		return strconv.FormatFloat(n/1e6, 'f', 1, 64) + " M"
	case n >= 1e4:
		return strconv.FormatFloat(n/1e3, 'f', 0, 64) + " k"
	case n >= 100 || n == float64(int64(n)):
		return strconv.FormatFloat(n, 'f', 0, 64)
	default:
		return strconv.FormatFloat(n, 'f', 1, 64)
	}
}

// plural is a number and what it counts.
func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return number(n) + " " + many
}

// age is a readable duration: its largest unit, or two.
func age(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Second:
		return "0 s"
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		if d < 10*time.Hour && d%time.Hour >= time.Minute {
			return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
		}
		return fmt.Sprintf("%d h", d/time.Hour)
	default:
		return fmt.Sprintf("%d d", d/(24*time.Hour))
	}
}

// until is the readable time until a moment.
func until(now, t time.Time) string {
	if d := t.Sub(now); d > time.Second {
		return "in " + age(d)
	}
	return "now"
}

// stamp is a time in UTC; in the browser it can be made local.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") + "Z" }

func percent(share float64) string { return strconv.FormatFloat(share*100, 'f', 1, 64) + " %" }

// size is a number of bytes.
func size(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	default:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
}

// oneLine is text on one line, truncated to what a table can show.
func oneLine(limit int, text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if utf8.RuneCountInString(text) <= limit {
		return text
	}
	runes := []rune(text)
	return string(runes[:limit-1]) + "…"
}

// words is one of our names in readable form.
func words(v any) string { return strings.ReplaceAll(strings.ToLower(fmt.Sprint(v)), "_", " ") }

func toJSON(v any) (string, error) {
	data, err := json.Marshal(v)
	return string(data), err
}

// diffClasses are the CSS classes of a difference's lines.
var diffClasses = map[string]string{"-": "gone", "+": "new", "@": "gap", " ": "same"}

// diffSigns are the signs in front of lines.
var diffSigns = map[string]string{"-": "−", "+": "+", "@": "⋯", " ": " "}

// percentage is a share in whole percent, which is 100 only when everything is done.
func percentage(share float64) int { return int(max(0, min(share, 1)) * 100) }

// maxRevisions is how many of an entry's revisions have a link.
const maxRevisions = 12

// revisions are the earlier revisions: the original, and the newest when there are many.
func revisions(last int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for n := range last {
			if (n == 0 || n > last-maxRevisions) && !yield(n) {
				return
			}
		}
	}
}

// ruleText is what a rule takes.
func ruleText(r redrive.Rule) string {
	var parts []string
	for _, p := range []struct{ name, value string }{
		{"reason", string(r.Reason)},
		{"class", r.ErrorClass},
		{"code", r.ErrorCode},
		{"cause", r.Fingerprint},
		{"handler", r.Handler},
		{"topic", r.Topic},
		{"cause contains", r.CauseText},
	} {
		if p.value != "" {
			parts = append(parts, p.name+" "+p.value)
		}
	}
	return strings.Join(parts, ", ")
}
