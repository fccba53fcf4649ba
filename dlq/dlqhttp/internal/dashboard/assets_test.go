package dashboard

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The embedded files of other projects are exactly those in vendor.sum, each with its licence.
func TestAssets_Manifest(t *testing.T) {
	file, err := os.Open("vendor.sum")
	require.NoError(t, err)
	defer file.Close()
	named := map[string]string{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		sum, name, ok := strings.Cut(lines.Text(), "  ")
		require.True(t, ok)
		named[name] = sum
	}
	there := map[string]string{}
	for name, a := range assets() {
		if name, vendored := strings.CutPrefix(name, "vendor/"); vendored {
			digest := sha256.Sum256(a.data)
			there[name] = hex.EncodeToString(digest[:])
		}
	}
	require.Equal(t, named, there)
	require.Len(t, there, 7)
}

var elsewhere = regexp.MustCompile(`(?i)(?:src|href|action|url)\s*[=(]\s*["']?\s*(?:https?:)?//`)

// Neither a page nor a file of ours names another host, and none has a script, a style or an inline handler: the policy
// would stop it.
func TestAssets_NothingFromElsewhere(t *testing.T) {
	for _, dir := range []string{"templates", "static"} {
		files, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, f := range files {
			if f.IsDir() {
				continue
			}
			text, err := os.ReadFile(dir + "/" + f.Name())
			require.NoError(t, err)
			require.NotRegexp(t, elsewhere, string(text), f.Name())
			if dir == "templates" {
				require.NotRegexp(t, `(?i)<style|\sstyle=|\son[a-z]+=|<script>|hx-on|javascript:`, string(text), f.Name())
			}
		}
	}
	require.NotContains(t, policy, "unsafe")
}

// The size of all embedded files, as sent: the heaviest page uses all of them.
func TestAssets_Weight(t *testing.T) {
	total := 0
	for name, a := range assets() {
		if !strings.HasSuffix(name, "LICENSE") {
			total += len(a.zipped)
		}
	}
	require.Less(t, total, 100<<10, "with the page itself, the dashboard stays far below 250 kB")
}
