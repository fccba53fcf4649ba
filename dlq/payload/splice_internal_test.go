package payload

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// An edit of a large object costs as much as reading it: 80,000 members used to take half a minute.
func TestSplice_ManyMembers(t *testing.T) {
	t.Parallel()
	var object strings.Builder
	object.WriteString(`{"x":1`)
	for n := range 80_000 {
		fmt.Fprintf(&object, `, "key %d": %d`, n, n)
	}
	object.WriteString("}")
	original := []byte(object.String())
	value, err := decodeJSON(original)
	require.NoError(t, err)
	value.(map[string]any)["x"] = 2 //nolint:forcetypeassert // an object
	after, err := spliceJSON(original, value)
	require.NoError(t, err)
	require.Equal(t, strings.Replace(object.String(), `"x":1`, `"x":2`, 1), string(after))
}
