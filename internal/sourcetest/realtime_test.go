// Package sourcetest holds the sources of all modules to rules that a linter does not know.
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

const root = "../.."

// A test waits for the thing that it waits for, and what is about time runs in a bubble of testing/synctest. A pause outside of
// one costs every run its whole length, and is too short on a busy machine, so the few that must be carry their reason.
func TestTests_DoNotPauseInRealTime(t *testing.T) {
	var reasons []string
	files := 0
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || d.Name() == "node_modules" || path != root && strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || !isTest(path) {
			return nil
		}
		files++
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		for _, p := range pausesOf(set, file) {
			place := set.Position(p.pos)
			place.Filename, _ = filepath.Rel(root, place.Filename)
			switch {
			case p.inBubble || strings.HasPrefix(p.comment, "virtual"):
			case strings.HasPrefix(p.comment, "real time: "):
				reasons = append(reasons, place.String()+": "+p.comment)
			default:
				t.Errorf("%s pauses: wait for the thing itself (integration/await), use testing/synctest and write // virtual, "+
					"or write // real time: and the reason", place)
			}
		}
		return nil
	}))
	require.Greater(t, files, 100, "the tests are somewhere else")
	t.Logf("%d pauses in real time:\n%s", len(reasons), strings.Join(reasons, "\n"))
	require.LessOrEqual(t, len(reasons), mostReal, "more than the few")
}

// mostReal is how many pauses in real time there are. It only goes down.
const mostReal = 22

// isTest reports whether a file is a test, or of a package for tests.
func isTest(path string) bool {
	path = filepath.ToSlash(path)
	return strings.HasSuffix(path, "_test.go") || strings.HasSuffix(filepath.Dir(path), "test") ||
		strings.HasPrefix(path, root+"/integration/")
}

type pause struct {
	pos      token.Pos
	comment  string // at the end of its line
	inBubble bool   // inside of a call of synctest.Test
}

// pausesOf returns calls of time.Sleep, and receives from time.After for which nothing else is awaited.
func pausesOf(set *token.FileSet, file *ast.File) (found []pause) {
	comments := map[int]string{}
	for _, group := range file.Comments {
		for _, c := range group.List {
			comments[set.Position(c.Pos()).Line] = strings.TrimSpace(strings.TrimPrefix(c.Text, "//"))
		}
	}
	var visit func(n ast.Node, inBubble bool)
	visit = func(n ast.Node, inBubble bool) {
		ast.Inspect(n, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if isCall(call, "synctest", "Test") && !inBubble {
					visit(call, true)
					return false
				}
				if isCall(call, "time", "Sleep") {
					found = append(found, pause{call.Pos(), comments[set.Position(call.End()).Line], inBubble})
				}
			}
			if s, ok := n.(*ast.ExprStmt); ok {
				receive, ok := s.X.(*ast.UnaryExpr)
				if ok && receive.Op == token.ARROW && isCall(receive.X, "time", "After") {
					found = append(found, pause{s.Pos(), comments[set.Position(s.End()).Line], inBubble})
				}
			}
			if comm, ok := n.(*ast.CommClause); ok { // what a select waits for is a deadline, not a pause
				for _, s := range comm.Body {
					visit(s, inBubble)
				}
				return false
			}
			return true
		})
	}
	visit(file, false)
	return found
}

func isCall(e ast.Expr, pkg, name string) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != name {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == pkg
}

// The check sees each form of a pause, and none that is not one.
func TestPausesOf(t *testing.T) {
	const source = `package p
func f() {
	time.Sleep(1)
	<-time.After(1) // real time: the work
	select {
	case <-time.After(1):
		time.Sleep(2) // virtual
	}
	synctest.Test(t, func(t *testing.T) { time.Sleep(3) })
}`
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "p.go", source, parser.ParseComments)
	require.NoError(t, err)
	var got []pause
	for _, p := range pausesOf(set, file) {
		got = append(got, pause{comment: p.comment, inBubble: p.inBubble})
	}
	require.Equal(t, []pause{{}, {comment: "real time: the work"}, {comment: "virtual"}, {inBubble: true}}, got)
}
