package sourcetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// CI counts tests, and repeats failed ones to distinguish broken from unstable ones.
func TestTestcount(t *testing.T) {
	t.Parallel()
	const (
		passed  = `{"Action":"pass","Package":"p","Test":"TestA"}`
		failedB = `{"Action":"fail","Package":"p","Test":"TestB/case"}` + "\n" +
			`{"Action":"fail","Package":"p","Test":"TestB"}`
		failedC  = `{"Action":"fail","Package":"p","Test":"TestC"}`
		failedD  = `{"Action":"fail","Package":"q","Test":"TestD"}`
		pkg      = `{"Action":"fail","Package":"p"}`
		alone    = `{"Action":"fail","Package":"r"}`
		race     = `{"Action":"output","Package":"p","Test":"TestB","Output":"WARNING: DATA RACE\n"}`
		passedB  = `{"Action":"pass","Package":"p","Test":"TestB"}`
		unstable = "UNSTABLE: TestB of p failed and then passed each time\n"
		skipped  = `{"Action":"skip","Package":"p","Test":"TestS"}`
	)
	program := filepath.Join(t.TempDir(), "testcount")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program,
		filepath.Join(root, "internal/tools/testcount/main.go")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for name, tt := range map[string]struct {
		first, again []string
		candidates   string // empty: nothing is run again
		total        string // passed, failed, skipped
		green        bool   // a test that failed once has failed
	}{
		"green":             {[]string{passed, skipped}, nil, "", "1 0 1", true},
		"unstable":          {[]string{passed, failedB, pkg}, []string{passedB}, "p TestB", unstable + "1 2 0", false},
		"fails again":       {[]string{passed, failedB, pkg}, []string{passedB, failedB}, "p TestB", "1 2 0", false},
		"one":               {[]string{failedB, failedC, pkg}, []string{passedB, failedC}, "p TestB p TestC", unstable + "0 3 0", false},
		"three":             {[]string{passed, failedB, failedC, failedD, pkg}, nil, "", "1 4 0", false},
		"a race":            {[]string{passed, race, failedB, pkg}, []string{passedB}, "", "1 2 0", false},
		"a race then":       {[]string{passed, failedC, pkg}, []string{race, passedB}, "p TestC", "1 1 0", false},
		"a package as well": {[]string{passed, failedC, pkg, alone}, []string{passedB}, "", "1 2 0", false},
		"not run again":     {[]string{passed, failedC, pkg}, []string{passedB}, "p TestC", "1 1 0", false},
		"nothing":           {nil, nil, "", "0 0 0", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			first, again := filepath.Join(dir, "first.json"), filepath.Join(dir, "again.json")
			require.NoError(t, os.WriteFile(first, []byte(strings.Join(tt.first, "\n")), 0o600))
			require.NoError(t, os.WriteFile(again, []byte(strings.Join(tt.again, "\n")), 0o600))
			list, err := exec.CommandContext(t.Context(), program, "-candidates", first).Output()
			require.Equal(t, tt.candidates == "", err != nil)
			require.ElementsMatch(t, strings.Fields(tt.candidates), strings.Fields(string(list)))
			args := []string{first}
			if tt.again != nil {
				args = []string{"-again", again, first}
			}
			total, err := exec.CommandContext(t.Context(), program, args...).Output()
			require.Equal(t, tt.green, err == nil)
			text := strings.NewReplacer(" passed,", "", " failed,", "", " skipped\n", "").Replace(string(total))
			require.Equal(t, tt.total, text)
		})
	}
}
