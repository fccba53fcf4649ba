package sourcetest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// When a method is looked up by a name that is not constant, the linker keeps every exported method of the program and
// all that these call: examples/orders was 27.7 MB with one such loop, and 23.3 MB without. Templates have the same
// effect, so only the dashboard, the API and their command use them, and no package that a service links.
func TestSources_LeaveMethodsToTheLinker(t *testing.T) {
	lookups := 0
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || isTest(path) {
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		constant, hidden := lookupsIn(file)
		lookups += len(constant)
		for _, pos := range hidden {
			t.Errorf("%s: MethodByName needs a literal: every program that links this keeps all methods otherwise",
				set.Position(pos))
		}
		return nil
	}))
	require.NotZero(t, lookups, "the sources are somewhere else")

	for _, p := range list(t, "./examples/orders", "./examples/quickstart", "./brokers/all") {
		require.NotContains(t, p.Deps, "html/template", p.ImportPath)
		if strings.Contains(p.ImportPath, "/examples/") { // a first run compiles all of it, for some seconds
			require.NotContains(t, p.Deps, "net/http", p.ImportPath)
		}
	}
}

// lookupsIn counts a file's calls of MethodByName, with a literal and with anything else.
func lookupsIn(file *ast.File) (constant, hidden []token.Pos) {
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) != 1 {
			return true
		}
		if sel, ok := call.Fun.(*ast.SelectorExpr); !ok || sel.Sel.Name != "MethodByName" {
			return true
		}
		if lit, ok := call.Args[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
			constant = append(constant, call.Pos())
		} else {
			hidden = append(hidden, call.Pos())
		}
		return true
	})
	return constant, hidden
}
