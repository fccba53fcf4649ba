package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"
)

const (
	// narrowest is the width below which no column of a table shrinks.
	narrowest = 8
	padding   = 2
)

// width is the width of the terminal behind w; 0 for programs, which get everything.
func width(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	if columns, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && columns > 0 {
		return columns
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil || columns <= 0 {
		return 80
	}
	return columns
}

// give is how a column shrinks when a table is too wide.
type give int

const (
	cuts  give = iota // its long texts end with an ellipsis
	drops             // it is left out, the last such column first, before anything is cut
	whole             // ids that people copy: never
	folds             // its long texts continue below
)

// fitted fits rows into a terminal of so many columns and returns the table's columns that are left: times become
// relative, the least important columns are omitted, and long texts are truncated or folded. -o wide shows everything.
func fitted[T any](rows []table.Row, columns []column[T], fit int, now time.Time) []column[T] {
	widths, total := make([]int, len(columns)), -padding
	for _, row := range rows {
		for i, cell := range row {
			shown := relative(fmt.Sprint(cell), now)
			row[i], widths[i] = shown, max(widths[i], utf8.RuneCountInString(shown))
		}
	}
	for _, w := range widths {
		total += padding + w
	}
	for i := len(columns) - 1; i >= 0 && total > fit; i-- {
		if columns[i].gives == drops {
			total -= padding + widths[i]
			columns, widths = slices.Delete(columns, i, i+1), slices.Delete(widths, i, i+1)
			for r := range rows {
				rows[r] = slices.Delete(rows[r], i, i+1)
			}
		}
	}
	for ; total > fit; total-- {
		widest := -1
		for i, w := range widths {
			if columns[i].gives != whole && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 || widths[widest] <= narrowest {
			break
		}
		widths[widest]--
	}
	for _, row := range rows {
		for i, cell := range row {
			shrink := shorten
			if columns[i].gives == folds {
				shrink = text.WrapSoft
			}
			row[i] = shrink(cell.(string), widths[i])
		}
	}
	return columns
}

func shorten(text string, limit int) string {
	if utf8.RuneCountInString(text) <= limit {
		return text
	}
	return strings.TrimRight(string([]rune(text)[:limit-1]), " ") + "…"
}

// relative is a cell of stampOf as the time since then; other cells do not change.
func relative(cell string, now time.Time) string {
	at, err := time.Parse(stampLayout, cell)
	if err != nil {
		return cell
	}
	ago := now.Sub(at)
	suffix := " ago"
	if ago < 0 {
		ago, suffix = -ago, " from now"
	}
	for _, unit := range []struct {
		length time.Duration
		name   string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}} {
		if ago >= 2*unit.length || ago >= unit.length && unit.name != "d" {
			return strconv.Itoa(int(ago/unit.length)) + unit.name + suffix
		}
	}
	return strconv.Itoa(int(ago/time.Second)) + "s" + suffix
}
