package docstest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each step of a walk is in the file that docs/architecture.md names, and each walk opens as many files as the page
// states, which must not grow.
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
	for walk, most := range map[string]int{"One message": 12, "One dead letter": 5, "One redrive": 9} {
		text := regexp.MustCompile(`(?s)## ` + walk + `.*?(\n\nThe transport's part|\n## |$)`).FindString(string(page))
		said := regexp.MustCompile(`opens (\d+) files in this order`).FindStringSubmatch(text)
		require.NotNil(t, said, walk)
		files := map[string]bool{}
		for _, step := range regexp.MustCompile("`([a-z/0-9_]+\\.go): ").FindAllStringSubmatch(text, -1) {
			files[step[1]] = true
		}
		require.Equal(t, said[1], strconv.Itoa(len(files)), walk)
		require.LessOrEqual(t, len(files), most, walk)
	}
}

// functions returns the names of the functions and methods that a file declares.
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
