package sourcetest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// packagesWithoutExample need no Example of their first call: suites for authors of drivers and stores, the interfaces
// that they implement, data formats, and packages whose documentation is the whole program.
var packagesWithoutExample = map[string]bool{
	".": true, "brokers/all": true, "brokers/brokertest": true, "brokers/driver": true,
	"brokers/driver/drivertest": true, "brokers/portable": true, "dlq/dlqhttp/dlqhttptest": true, "dlq/dlqtest": true,
	"dlq/driver": true, "dlq/notify": true, "dlq/wire": true, "middleware/idempotency/storetest": true,
	"middleware/tracing/tracingtest": true,
}

// Every package that programs import has an Example of how to start. It is compiled, and run if it needs no server.
func TestPackages_HaveAnExample(t *testing.T) {
	example := regexp.MustCompile(`(?m)^func Example`)
	for _, dir := range importable(t) {
		if packagesWithoutExample[dir] {
			continue
		}
		tests, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
		require.NoError(t, err)
		has := false
		for _, name := range tests {
			source, err := os.ReadFile(name)
			require.NoError(t, err)
			has = has || example.Match(source)
		}
		require.True(t, has, "package %s has no Example", dir)
	}
}

// importable returns the folders of the packages that users can import.
func importable(t *testing.T) []string {
	t.Helper()
	var dirs []string
	require.NoError(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, path)
		if err != nil || !d.IsDir() {
			return err
		}
		switch name := d.Name(); {
		case dir == ".":
		case strings.HasPrefix(name, "."), name == "internal", name == "testdata", name == "node_modules", name == "cmd",
			name == "examples", name == "integration", name == "docs", name == "deploy":
			return filepath.SkipDir
		}
		files, err := filepath.Glob(filepath.Join(path, "*.go"))
		for _, name := range files {
			if !strings.HasSuffix(name, "_test.go") {
				dirs = append(dirs, filepath.ToSlash(dir))
				break
			}
		}
		return err
	}))
	return dirs
}
