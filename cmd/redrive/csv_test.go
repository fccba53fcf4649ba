package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Values that a spreadsheet would run as a formula are text in CSV.
func TestCells(t *testing.T) {
	for value, want := range map[string]string{
		`=HYPERLINK("x")`: `'=HYPERLINK("x")`, "+1": "'+1", "-1": "'-1", "@SUM(A1)": "'@SUM(A1)", "\tx": "'\tx",
		"\rx": "'\rx", "": "", "a=b": "a=b",
	} {
		columns := cells([]column[string]{{value: func(s string) string { return s }}})
		require.Equal(t, want, columns[0].value(value))
	}
}
