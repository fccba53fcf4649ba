package duration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/internal/duration"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "0d": 0, "90d": 90 * 24 * time.Hour, "1d12h": 36 * time.Hour, "1d0.5h": 24*time.Hour + 30*time.Minute,
		"250ms": 250 * time.Millisecond, "1h30m": 90 * time.Minute, "-5m": -5 * time.Minute,
		"65535d": 65535 * 24 * time.Hour, "65535d23h": 65535*24*time.Hour + 23*time.Hour,
	} {
		got, err := duration.Parse(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
}

// A fault is one of time.ParseDuration, which names the text.
func TestParse_Faults(t *testing.T) {
	for _, text := range []string{
		"", "d", "90", "soon", "1.5d", "-1d", "+1d", "1d-3h", "1d+3h", "1d 3h", "3h1d", "1dd", "1d1", "65536d", "65535d2562047h",
		"99999999999999999999d", "4294967295d",
	} {
		_, err := duration.Parse(text)
		require.ErrorContains(t, err, `"`+text+`"`)
	}
}
