package sourcetest

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// Shipped code may have at most this many of each. Numbers are only lowered; mostLines was raised by 511 lines for
// the mends of 38 defects, by 415 for those of 80, and by 12.
const (
	mostLong        = 0     // functions of more than 60 lines
	mostWide        = 0     // functions of more than five parameters
	mostBooleans    = 43    // parameters that are booleans
	mostGlobals     = 129   // package variables, without errors, patterns and assertions of an interface
	mostExpressions = 0     // see bent
	mostLines       = 89981 // of all Go outside tests, with comments and blanks; suites, examples and helpers included
)

// bent are expressions that read like a translation, shared by sources, pages and screens.
const bent = `says who, says how, says what, says whether, tells whether, nobody, who asks, who may see, whoever, of its own,
of their own, by itself, by themselves, beside, under way, is asked, are asked, is told, are told, is said, are said,
becomes of, comes of it, for ever, taken for, without a word, go round, goes round, go on, goes on, give back, gives back,
put aside, puts aside, stands in, hop, hops, obey, obeys, worn, bury, buried, cautious, acquit, owe, owes, owed, bells, pump,
lane, lanes, newcomers, what was, somebody, everybody, anew, is not there, says so, makes of, made again, comes again,
come again, came again, as it is said, is away, was away, been away, be away, has gone, in turns, take turns,
that is none, says that, nothing but, for instance`

// numbers are the counts of a source tree.
type numbers struct {
	lines                  map[string]int // of Go without blanks and comments, by package
	exported               int            // names of packages that users can import, methods and fields not counted
	functions              int
	long, wide             []string
	booleans, globals      []string
	columns                int // lines above 120 columns
	expressions            map[string]int
	expressionsIn          map[string]int // by file
	shipped, suites, other int            // lines
	raw                    int            // lines of all Go outside tests, with comments and blanks
}

// go test -run TestNumbers -v ./internal/sourcetest prints the numbers.
func TestNumbers(t *testing.T) {
	n := numbers{lines: map[string]int{}, expressions: map[string]int{}, expressionsIn: map[string]int{}}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		place, _ := filepath.Rel(root, path)
		return n.add(filepath.ToSlash(place))
	}))
	n.print(t)
	require.Greater(t, n.functions, 3000, "the functions are somewhere else")
	for name, limit := range map[string]struct {
		found []string
		most  int
	}{
		"functions of more than 60 lines":        {n.long, mostLong},
		"functions of more than five parameters": {n.wide, mostWide},
		"booleans as parameters":                 {n.booleans, mostBooleans},
		"package variables":                      {n.globals, mostGlobals},
	} {
		require.LessOrEqual(t, len(limit.found), limit.most, "%s: %s", name, strings.Join(limit.found, "\n"))
	}
	require.LessOrEqual(t, sum(n.expressions), mostExpressions, "%v", n.expressionsIn)
	require.LessOrEqual(t, n.raw, mostLines, "what is no longer needed, or exists elsewhere already?")
}

// add counts one file.
func (n *numbers) add(place string) error {
	if !slices.Contains([]string{".go", ".md", ".html", ".js", ".yaml", ".sql"}, filepath.Ext(place)) {
		return nil
	}
	source, err := os.ReadFile(filepath.Join(root, place))
	if err != nil {
		return err
	}
	if !strings.Contains(place, "testdata/") && place != "CHANGELOG.md" && place != "internal/sourcetest/numbers_test.go" {
		n.addExpressions(place, string(source))
	}
	if filepath.Ext(place) != ".go" || strings.Contains(place, "testdata/") {
		return nil
	}
	for line := range strings.Lines(string(source)) {
		if utf8.RuneCountInString(strings.TrimRight(line, "\n")) > longestLine {
			n.columns++
		}
	}
	if strings.HasSuffix(place, "_test.go") {
		return nil
	}
	n.raw += strings.Count(string(source), "\n")
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, place, source, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	lines := codeLines(source)
	n.lines[filepath.ToSlash(filepath.Dir(place))] += lines
	part, _, _ := strings.Cut(place, "/")
	switch {
	case part == "integration" || part == "examples" || strings.HasPrefix(place, "internal/tools/"):
		n.other += lines
	case isTest(root + "/" + place):
		n.suites += lines
	default:
		n.shipped += lines
		n.addFile(set, file, place)
	}
	return nil
}

// bentWords are the expressions, split into words, by their first word.
var bentWords = func() map[string][][]string {
	byFirst := map[string][][]string{}
	for expression := range strings.SplitSeq(bent, ",") {
		words := strings.Fields(expression)
		byFirst[words[0]] = append(byFirst[words[0]], words)
	}
	return byFirst
}()

// testName matches the names of tests, and of cases of the conformance suites.
var testName = regexp.MustCompile(`func (\(w \*world\) )?(Test|Benchmark|Fuzz|Example)\w+|"[A-Z]\w+_\w+"`)

// inner matches a capital letter that begins a further word of a name.
var inner = regexp.MustCompile(`[A-Z]`)

// betweenClauses puts a word that is in no expression in place of what no expression extends across.
var betweenClauses = func() *strings.Replacer {
	var pairs []string
	for sign := range strings.SplitSeq(".,;:(){}\"_", "") {
		pairs = append(pairs, sign, " stop ")
	}
	return strings.NewReplacer(pairs...)
}()

func (n *numbers) addExpressions(place, text string) {
	text = testName.ReplaceAllStringFunc(strings.ReplaceAll(text, "http.NoBody", ""), func(name string) string {
		return inner.ReplaceAllString(name, " $0")
	})
	words := strings.Fields(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r == ' ' || r == '\n' {
			return r
		}
		return ' '
	}, betweenClauses.Replace(strings.ToLower(text))))
	for i, first := range words {
		for _, expression := range bentWords[first] {
			if len(words)-i >= len(expression) && slices.Equal(words[i:i+len(expression)], expression) {
				n.expressions[strings.Join(expression, " ")]++
				n.expressionsIn[place]++
			}
		}
	}
}

// addFile counts the declarations of a file that ships.
func (n *numbers) addFile(set *token.FileSet, file *ast.File, place string) {
	public := file.Name.Name != "main" && !strings.Contains("/"+place, "/internal/")
	export := func(name *ast.Ident) {
		if public && name.IsExported() {
			n.exported++
		}
	}
	for _, declared := range file.Decls {
		switch d := declared.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				export(d.Name)
			}
			n.addFunction(set, d, place)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					export(s.Name)
				case *ast.ValueSpec:
					for _, name := range s.Names {
						export(name)
						if d.Tok == token.VAR && isGlobal(name.Name, s) {
							n.globals = append(n.globals, place+": "+name.Name)
						}
					}
				}
			}
		}
	}
}

// isGlobal reports whether a package variable is more than a constant in disguise. Errors, patterns, embedded files and
// assertions of interfaces are not.
func isGlobal(name string, s *ast.ValueSpec) bool {
	if name == "_" || strings.HasPrefix(strings.ToLower(name), "err") {
		return false
	}
	for _, value := range s.Values {
		if call, ok := value.(*ast.CallExpr); ok {
			if f, ok := call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "MustCompile" {
				return false
			}
		}
	}
	return true
}

func (n *numbers) addFunction(set *token.FileSet, f *ast.FuncDecl, place string) {
	n.functions++
	name := place + ": " + f.Name.Name
	if f.Body != nil && set.Position(f.Body.Rbrace).Line-set.Position(f.Body.Lbrace).Line-1 > 60 {
		n.long = append(n.long, name)
	}
	if f.Type.Params.NumFields() > 5 {
		n.wide = append(n.wide, name)
	}
	for _, param := range f.Type.Params.List {
		if kind, ok := param.Type.(*ast.Ident); ok && kind.Name == "bool" {
			for range max(1, len(param.Names)) {
				n.booleans = append(n.booleans, name)
			}
		}
	}
}

// codeLines counts the lines that have a token other than a comment on them.
func codeLines(source []byte) int {
	set := token.NewFileSet()
	file := set.AddFile("", set.Base(), len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, 0)
	lines := map[int]bool{}
	for {
		pos, kind, text := s.Scan()
		if kind == token.EOF {
			return len(lines)
		}
		if kind == token.SEMICOLON && text == "\n" {
			continue
		}
		for i := range strings.Count(text, "\n") + 1 {
			lines[file.Line(pos)+i] = true
		}
	}
}

func sum(counts map[string]int) (total int) {
	for _, count := range counts {
		total += count
	}
	return total
}

func (n *numbers) print(t *testing.T) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "lines of Go outside _test.go files: %d; without comments and blanks: %d ship, %d suites, "+
		"%d examples and the rest\n", n.raw, n.shipped, n.suites, n.other)
	table(&b, "lines by package", n.lines)
	fmt.Fprintf(&b, "%d exported names\n%d functions\n%d lines above 120 columns\n", n.exported, n.functions, n.columns)
	for _, list := range []struct {
		name  string
		found []string
	}{
		{"functions of more than 60 lines", n.long},
		{"functions of more than five parameters", n.wide},
		{"booleans as parameters", n.booleans},
		{"package variables", n.globals},
	} {
		fmt.Fprintf(&b, "%d %s\n  %s\n", len(list.found), list.name, strings.Join(list.found, "\n  "))
	}
	fmt.Fprintf(&b, "%d expressions that read like a translation\n", sum(n.expressions))
	table(&b, "by expression", n.expressions)
	table(&b, "by file", n.expressionsIn)
	t.Log("\n" + b.String())
}

// table prints counts, the largest first.
func table(b *strings.Builder, title string, counts map[string]int) {
	fmt.Fprintf(b, "%s:\n", title)
	for _, name := range slices.SortedFunc(maps.Keys(counts), func(a, c string) int {
		return cmp.Or(counts[c]-counts[a], strings.Compare(a, c))
	}) {
		fmt.Fprintf(b, "%8d %s\n", counts[name], name)
	}
}
