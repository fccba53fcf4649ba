package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func Example() {
	main()
	// Output:
	// order 4711: attempt 1 of 4
	// order 4711: attempt 2 of 4
}

// The README shows this program: what a stranger copies from there compiles and prints what it says.
func TestREADME_ShowsThisProgram(t *testing.T) {
	program, err := os.ReadFile("main.go")
	require.NoError(t, err)
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	_, body, found := strings.Cut(string(program), "\nfunc main()")
	require.True(t, found)
	body, _, found = strings.Cut(body, "\nfunc must")
	require.True(t, found)
	require.Contains(t, string(readme), strings.TrimSpace("func main()"+body))
}
