package wire_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq/wire"
)

// A number of seconds that no duration has is the longest duration, never one of the other sign.
func TestSeconds_TooMany(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"1.5": 1500 * time.Millisecond, "-2": -2 * time.Second} {
		var s wire.Seconds
		require.NoError(t, json.Unmarshal([]byte(text), &s))
		require.Equal(t, want, s.Duration())
	}
	for _, text := range []string{"9223372036.854775807", "1e10", "1e300"} {
		var long, past wire.Seconds
		require.NoError(t, json.Unmarshal([]byte(text), &long))
		require.Greater(t, long.Duration(), 292*365*24*time.Hour, text)
		require.NoError(t, json.Unmarshal([]byte("-"+text), &past))
		require.Less(t, past.Duration(), -292*365*24*time.Hour, text)
	}
}
