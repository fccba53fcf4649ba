// Package sourcetest checks rules for the sources of all modules that no linter knows.
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

// Tests wait for events, and tests of schedules run in a bubble of testing/synctest. A pause in real time delays every
// run by its whole length, and is too short on a busy machine, so the few that are needed have a reason in a comment.
func TestTests_DoNotPauseInRealTime(t *testing.T) {
	var reasons []string
	files := 0
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || d.Name() == "node_modules" || path != root &&
			strings.HasPrefix(d.Name(), ".")) {
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
			case p.unawaited:
				t.Errorf("%s: synctest.Wait() must follow: what the other goroutines do at that moment races with the test", place)
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

// mostReal is the number of pauses in real time. It is only lowered.
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
	// It is in the bubble's first goroutine, and synctest.Wait does not follow.
	unawaited bool
}

// pausesOf returns calls of time.Sleep, and receives from time.After for which nothing else is awaited.
func pausesOf(set *token.FileSet, file *ast.File) (found []pause) {
	comments := map[int]string{}
	for _, group := range file.Comments {
		for _, c := range group.List {
			comments[set.Position(c.Pos()).Line] = strings.TrimSpace(strings.TrimPrefix(c.Text, "//"))
		}
	}
	unawaited := unawaitedIn(file)
	var visit func(n ast.Node, inBubble bool)
	visit = func(n ast.Node, inBubble bool) {
		ast.Inspect(n, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if isCall(call, "synctest", "Test") && !inBubble {
					visit(call, true)
					return false
				}
				if isCall(call, "time", "Sleep") {
					found = append(found, pause{call.Pos(), comments[set.Position(call.End()).Line], inBubble, unawaited[call.Pos()]})
				}
			}
			if s, ok := n.(*ast.ExprStmt); ok {
				if isAfter(s) {
					found = append(found, pause{s.Pos(), comments[set.Position(s.End()).Line], inBubble, unawaited[s.Pos()]})
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

// unawaitedIn returns where the first goroutine of a bubble pauses, and continues without synctest.Wait. When it wakes,
// a timer of another goroutine that is due at the same moment or before may still be at work: the race detector has
// found reads of a test's results that way, once in some hundred runs.
func unawaitedIn(file *ast.File) map[token.Pos]bool {
	found := map[token.Pos]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		bubble, ok := n.(*ast.CallExpr)
		if !ok || !isCall(bubble, "synctest", "Test") || len(bubble.Args) != 2 {
			return true
		}
		body, ok := bubble.Args[1].(*ast.FuncLit)
		if !ok {
			return true
		}
		ast.Inspect(body.Body, func(n ast.Node) bool {
			if block, ok := n.(*ast.BlockStmt); ok {
				for i, s := range block.List {
					sleep, ok := s.(*ast.ExprStmt)
					if ok && (isCall(sleep.X, "time", "Sleep") || isAfter(sleep)) && !awaits(block.List[i+1:]) {
						found[sleep.Pos()] = true
					}
				}
			}
			_, nested := n.(*ast.FuncLit)
			return !nested
		})
		return true
	})
	return found
}

// awaits reports whether the next of the statements is synctest.Wait().
func awaits(next []ast.Stmt) bool {
	if len(next) == 0 {
		return false
	}
	s, ok := next[0].(*ast.ExprStmt)
	return ok && isCall(s.X, "synctest", "Wait")
}

// isAfter reports whether s receives from time.After.
func isAfter(s *ast.ExprStmt) bool {
	receive, ok := s.X.(*ast.UnaryExpr)
	return ok && receive.Op == token.ARROW && isCall(receive.X, "time", "After")
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

// The check finds every form of a pause, and nothing else.
func TestPausesOf(t *testing.T) {
	const source = `package p
func f() {
	time.Sleep(1)
	<-time.After(1) // real time: the work
	select {
	case <-time.After(1):
		time.Sleep(2) // virtual
	}
	synctest.Test(t, func(t *testing.T) {
		go func() { time.Sleep(3) }()
		time.Sleep(4)
		synctest.Wait()
		time.Sleep(5)
		<-time.After(6)
	})
}`
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "p.go", source, parser.ParseComments)
	require.NoError(t, err)
	var got []pause
	for _, p := range pausesOf(set, file) {
		got = append(got, pause{comment: p.comment, inBubble: p.inBubble, unawaited: p.unawaited})
	}
	require.Equal(t, []pause{
		{},
		{comment: "real time: the work"},
		{comment: "virtual"},
		{inBubble: true},
		{inBubble: true},
		{inBubble: true, unawaited: true},
		{inBubble: true, unawaited: true},
	}, got)
}
