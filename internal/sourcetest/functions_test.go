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

// What ships has few functions with more than 60 lines or five parameters. The numbers only go down.
const (
	mostLong = 5
	mostWide = 12
)

func TestFunctions_AreShort(t *testing.T) {
	var long, wide []string
	functions := 0
	for _, dir := range []string{"envelope", "middleware", "brokers", "dlq", "cmd", "internal"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || isTest(path) {
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, declared := range file.Decls {
				f, ok := declared.(*ast.FuncDecl)
				if !ok || f.Body == nil {
					continue
				}
				functions++
				name := strings.TrimPrefix(filepath.ToSlash(path), root+"/") + ": " + f.Name.Name
				if set.Position(f.Body.Rbrace).Line-set.Position(f.Body.Lbrace).Line-1 > 60 {
					long = append(long, name)
				}
				if f.Type.Params.NumFields() > 5 {
					wide = append(wide, name)
				}
			}
			return nil
		}))
	}
	require.Greater(t, functions, 3000, "the functions are somewhere else")
	require.LessOrEqual(t, len(long), mostLong, "more than 60 lines: %s", strings.Join(long, "\n"))
	require.LessOrEqual(t, len(wide), mostWide, "more than five parameters: %s", strings.Join(wide, "\n"))
}
