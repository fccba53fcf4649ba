package docstest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each step of the walks is where docs/architecture.md has it, and a walk from delivery to ack opens at most a dozen
// files.
func TestArchitecture(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	require.NoError(t, err)
	steps := regexp.MustCompile("`([a-z/0-9_]+\\.go): (\\w+)`").FindAllStringSubmatch(string(page), -1)
	require.Greater(t, len(steps), 40)
	declared := map[string]map[string]bool{}
	for _, step := range steps {
		path, name := step[1], step[2]
		if declared[path] == nil {
			declared[path] = functions(t, filepath.Join(root, path))
		}
		require.True(t, declared[path][name], "%s has no function %s", path, name)
	}
	for _, dir := range regexp.MustCompile("(?m)^\\| ((?:`[a-z/]+`(?:, )?)+) \\|").FindAllStringSubmatch(string(page),
		-1) {
		for _, name := range regexp.MustCompile("`([a-z]+/[a-z/]+)`").FindAllStringSubmatch(dir[1], -1) {
			require.DirExists(t, filepath.Join(root, name[1]))
		}
	}
	message := regexp.MustCompile(`(?s)## One message.*?\n\nThe transport's part`).FindString(string(page))
	files := map[string]bool{}
	for _, step := range regexp.MustCompile("`([a-z/0-9_]+\\.go): ").FindAllStringSubmatch(message, -1) {
		files[step[1]] = true
	}
	require.LessOrEqual(t, len(files), 12)
}

// functions are the names of those that a file declares, methods among them.
func functions(t *testing.T, path string) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	names := map[string]bool{}
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok {
			names[f.Name.Name] = true
		}
	}
	return names
}
