package docstest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/invopop/jsonschema"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/internal/config"
)

// configuration.md is generated from the schema: go test ./internal/docstest -update writes it.
func TestConfiguration_Page(t *testing.T) {
	var schema jsonschema.Schema
	require.NoError(t, json.Unmarshal(config.Schema(), &schema))
	var b strings.Builder
	b.WriteString(`# redrive.yaml

Every key of the configuration of the command and its server. It is read from ` + "`--config`, `$REDRIVE_CONFIG`" +
		` or redrive.yaml in the
working directory; ` + "`${NAME}` and `${file:/path}`" + ` in a value are replaced. ` + "`redrive config validate`" +
		` reads it as the server would, and
` + "`redrive config schema`" + ` prints the JSON Schema from which editors complete it, and from which this page is made:
go test ./internal/docstest -update.
`)
	for section := schema.Properties.Oldest(); section != nil; section = section.Next() {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| key | type | meaning |\n|---|---|---|\n", section.Key,
			section.Value.Description)
		keys(t, &b, section.Key, section.Value)
	}
	path := filepath.Join(root, "docs", "configuration.md")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, b.String(), string(text), "go test ./internal/docstest -run Configuration -update")
}

// keys writes a row for every value below a key.
func keys(t *testing.T, b *strings.Builder, path string, s *jsonschema.Schema) {
	t.Helper()
	switch {
	case s.Properties != nil && s.Properties.Len() > 0:
		for p := s.Properties.Oldest(); p != nil; p = p.Next() {
			keys(t, b, path+"."+p.Key, p.Value)
		}
		return
	case s.Type == "object" && s.AdditionalProperties != nil && s.AdditionalProperties.Properties != nil:
		keys(t, b, path+".NAME", s.AdditionalProperties)
		return
	case s.Type == "array" && s.Items != nil && s.Items.Properties != nil:
		keys(t, b, path+"[]", s.Items)
		return
	}
	require.NotEmpty(t, s.Description, path)
	kind := s.Type
	if kind == "array" && s.Items != nil {
		kind = "list of " + s.Items.Type
	}
	if s.Pattern != "" && len(s.Examples) > 0 {
		kind = fmt.Sprintf("like %v", s.Examples[0])
	}
	if len(s.Enum) > 0 {
		var values []string
		for _, v := range s.Enum {
			values = append(values, fmt.Sprint(v))
		}
		kind = strings.Join(values, ", ")
	}
	fmt.Fprintf(b, "| `%s` | %s | %s |\n", path, kind, strings.ReplaceAll(s.Description, "|", "\\|"))
}
