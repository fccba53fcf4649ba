package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Values that a spreadsheet would run as a formula are text in CSV. A tab or a line end before one, which it would
// strip, is a space, with which no formula begins.
func TestCells(t *testing.T) {
	columns := []column[string]{{title: "Value", value: func(s string) string { return s }}}
	for value, want := range map[string]string{
		`=HYPERLINK("x")`: `"'=HYPERLINK(""x"")"`, "+1": "'+1", "-1": "'-1", "@SUM(A1)": "'@SUM(A1)", "\tx": " x",
		"\rx": " x", "": "", "a=b": "a=b",
	} {
		var out strings.Builder
		a := &app{out: &out}
		a.flags.output = "csv"
		require.NoError(t, printList(a, []string{value}, columns))
		require.Equal(t, "Value\n"+want+"\n", out.String())
	}
}
