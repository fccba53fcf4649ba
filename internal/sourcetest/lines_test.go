package sourcetest

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

const longestLine = 120

// Lines end at 120 columns, where a break is possible; see [tooLong].
func TestLines_EndAt120Columns(t *testing.T) {
	files := 0
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || d.Name() == "node_modules" || path != root &&
			strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		files++
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		place, _ := filepath.Rel(root, path)
		for _, line := range tooLong(source) {
			t.Errorf("%s:%d has more than %d columns", place, line, longestLine)
		}
		return nil
	}))
	require.Greater(t, files, 500, "the sources are somewhere else")
}

// tooLong returns the numbers of lines that are too long and can be broken. A line cannot be broken that has a raw
// string of several lines (a template, a golden text), a struct's tags or a text without a space, such as a URL, or
// that is the output of an Example. A linter's directive has to stand at the end of its line, and does not count.
func tooLong(source []byte) (found []int) {
	set := token.NewFileSet()
	file := set.AddFile("", set.Base(), len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, scanner.ScanComments)
	excused, directive := map[int]bool{}, map[int]int{}
	lines := strings.Split(string(source), "\n")
	output := 0 // the line after the last one of an Example's output
	for {
		pos, kind, text := s.Scan()
		if kind == token.EOF {
			break
		}
		line := file.Line(pos)
		switch kind {
		case token.STRING:
			raw := text[0] == '`'
			if !raw && strings.Contains(text, " ") {
				continue
			}
			height := strings.Count(text, "\n") + 1
			if raw && height == 1 && strings.Contains(text, " ") && !tags.MatchString(text) {
				continue // it can be put together of two
			}
			for i := range height {
				excused[line+i] = true
			}
		case token.COMMENT:
			if line == output && alone(lines[line-1]) || strings.HasPrefix(text, "// Output:") {
				excused[line], output = true, line+1
			}
			if strings.HasPrefix(text, "//nolint:") {
				directive[line] = utf8.RuneCountInString(text) + 1
			}
			excused[line] = excused[line] || !strings.Contains(strings.TrimLeft(text, "/ \t"), " ")
		default:
		}
	}
	for i, line := range lines {
		if utf8.RuneCountInString(line)-directive[i+1] > longestLine && !excused[i+1] {
			found = append(found, i+1)
		}
	}
	return found
}

// tags returns the tags of a struct's field.
var tags = regexp.MustCompile("^`\\w+:\".*\"`$")

// alone reports whether a line is only a comment.
func alone(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "//") }

// The check finds a long line of each kind, and accepts only those that cannot be broken.
func TestTooLong(t *testing.T) {
	long := strings.Repeat("long ", 30)
	solid := strings.Repeat("solid", 30)
	source := strings.Join([]string{
		"package p",
		"// " + long,
		"// " + solid,
		`var a = "` + long + `"`,
		`var b = "` + solid + `"`,
		"var c = `",
		long,
		"`",
		"var d = 1 //nolint:" + long,
		"var e = " + strings.Repeat("1 + ", 40) + "1 //nolint:" + long,
		"// Output: " + long,
		"// " + long,
		"var f = 1 // " + long,
	}, "\n")
	require.Equal(t, []int{2, 4, 10, 13}, tooLong([]byte(source)))
}
