package dashboard

import (
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

var functions = template.FuncMap{
	"number": number, "plural": plural, "size": size, "short": short, "percent": percent, "percentage": percentage,
	"rate": rateText, "age": age, "since": func(now, t time.Time) string { return age(now.Sub(t)) }, "until": until,
	"stamp": stamp, "iso": func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) },
	"lower": func(v any) string { return strings.ToLower(fmt.Sprint(v)) }, "words": words, "one": oneLine,
	"path": url.PathEscape, "safeq": safeQuery, "json": toJSON, "rule": ruleText,
	"list": func(v ...any) []any { return v }, "statuses": wire.Statuses, "itemstates": redrive.ItemStates,
	"add":   func(a, b any) int64 { return whole(a) + whole(b) },
	"share": func(n, of any) int { return percentage(float64(whole(n)) / float64(max(whole(of), 1))) },
	"op":    func(op string) string { return diffMarks[op][0] }, "sign": func(op string) string { return diffMarks[op][1] },
	"revisions": revisions, "sum": sum, "from": driver.From,
}

// diffMarks are the CSS classes of a difference's lines, and the signs in front of them.
var diffMarks = map[string][2]string{"-": {"gone", "−"}, "+": {"new", "+"}, "@": {"gap", "⋯"}, " ": {"same", " "}}

// safeQuery returns the query of a request, cleaned of everything else.
func safeQuery(text string) template.URL {
	q, err := url.ParseQuery(text)
	if err != nil {
		return ""
	}
	return query(q)
}

// whole is an integer of any type: templates do not convert them.
func whole(n any) int64 { return reflect.ValueOf(n).Int() }

// number is a count with separated thousands.
func number(n any) string {
	digits, sign := strconv.FormatInt(whole(n), 10), ""
	if digits[0] == '-' {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// plural is a number and what it counts.
func plural(n any, one, many string) string {
	if whole(n) == 1 {
		return "1 " + one
	}
	return number(n) + " " + many
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

// age is a readable duration: its largest unit, or two.
func age(d time.Duration) string {
	switch {
	case d < time.Second:
		return "0 s"
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 10*time.Hour && d%time.Hour >= time.Minute:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	case d < 48*time.Hour:
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
func stamp(t time.Time) string { return t.UTC().Format(time.DateTime) + "Z" }

func percent(share float64) string { return strconv.FormatFloat(share*100, 'f', 1, 64) + " %" }

// percentage is a share in whole percent, which is 100 only when everything is done.
func percentage(share float64) int { return int(max(0, min(share, 1)) * 100) }

// rateText is a rate as it was typed: it is not rounded.
func rateText(rate float64) string { return strconv.FormatFloat(rate, 'f', -1, 64) + "/s" }

func size(bytes any) string {
	switch n := whole(bytes); {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	default:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
}

// oneLine is text on one line, truncated to what a table can show.
func oneLine(limit int, value any) string {
	text := strings.Join(strings.Fields(fmt.Sprint(value)), " ")
	if utf8.RuneCountInString(text) <= limit {
		return text
	}
	return string([]rune(text)[:limit-1]) + "…"
}

// words is one of our names in readable form.
func words(v any) string { return strings.ReplaceAll(strings.ToLower(fmt.Sprint(v)), "_", " ") }

func toJSON(v any) (string, error) {
	data, err := json.Marshal(v)
	return string(data), err
}

// maxRevisions is how many of an entry's revisions have a link.
const maxRevisions = 12

// revisions are an entry's revisions: the original, and the newest when there are many.
func revisions(last int) []int {
	list := []int{0}
	for n := max(1, last-maxRevisions+1); n <= last; n++ {
		list = append(list, n)
	}
	return list
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

// token is a piece of JSON in one colour. Its text is escaped by the template like any other.
type token struct{ Class, Text string }

var coloured = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null`)

// tokens splits valid JSON into keys, strings, numbers, literals, and what is between them.
func tokens(text string) []token {
	var all []token
	end := 0
	for _, at := range coloured.FindAllStringIndex(text, -1) {
		if between := text[end:at[0]]; between != "" {
			all = append(all, token{"", between})
		}
		piece, class := text[at[0]:at[1]], "l"
		end = at[1]
		switch first := piece[0]; {
		case first == '"' && strings.HasPrefix(text[end:], ":"):
			class = "k"
		case first == '"':
			class = "s"
		case first <= '9':
			class = "n"
		}
		all = append(all, token{class, piece})
	}
	if end < len(text) {
		all = append(all, token{"", text[end:]})
	}
	return all
}
