package sourcetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// CI counts tests.
func TestTestcount(t *testing.T) {
	t.Parallel()
	const (
		passed  = `{"Action":"pass","Package":"p","Test":"TestA"}`
		skipped = `{"Action":"skip","Package":"p","Test":"TestS"}`
		failed  = `{"Action":"fail","Package":"p","Test":"TestB/case"}` + "\n" +
			`{"Action":"fail","Package":"p","Test":"TestB"}`
		pkg   = `{"Action":"fail","Package":"p"}`
		alone = `{"Action":"fail","Package":"r"}`
	)
	program := filepath.Join(t.TempDir(), "testcount")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program,
		filepath.Join(root, "internal/tools/testcount/main.go")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for name, tt := range map[string]struct {
		events []string
		args   []string
		total  string
		green  bool
	}{
		"green":             {[]string{passed, "# compiles", skipped}, nil, "1 passed, 0 failed, 1 skipped", true},
		"a test":            {[]string{passed, failed, pkg}, nil, "1 passed, 2 failed, 0 skipped", false},
		"a package as well": {[]string{passed, failed, pkg, alone}, nil, "1 passed, 3 failed, 0 skipped", false},
		"another check":     {[]string{passed}, []string{"-failed", "1"}, "1 passed, 1 failed, 0 skipped", false},
		"nothing":           {nil, nil, "0 passed, 0 failed, 0 skipped", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "events.json")
			require.NoError(t, os.WriteFile(file, []byte(strings.Join(tt.events, "\n")), 0o600))
			total, err := exec.CommandContext(t.Context(), program, append(tt.args, file)...).Output()
			require.Equal(t, tt.green, err == nil)
			require.Equal(t, tt.total+"\n", string(total))
		})
	}
	missing, err := exec.CommandContext(t.Context(), program, filepath.Join(t.TempDir(), "missing")).Output()
	require.Error(t, err)
	require.Equal(t, "0 passed, 1 failed, 0 skipped\n", string(missing))
}
