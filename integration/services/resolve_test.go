package services

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// verdict is a testing.TB that records how the test would have ended.
type verdict struct {
	testing.TB
	skipped, failed string
}

func (*verdict) Helper()            {}
func (v *verdict) Skip(why ...any)  { v.skipped = fmt.Sprint(why...) }
func (v *verdict) Fatal(why ...any) { v.failed = fmt.Sprint(why...) }

func TestNeed(t *testing.T) {
	missing := &UnavailableError{Service: "kafka", Env: "TEST_KAFKA_BROKERS", Cause: os.ErrNotExist}
	for name, c := range map[string]struct {
		required, optional string
		err                error
		skips              bool
	}{
		"skips with the remedy if a server is missing":               {"", "", fmt.Errorf("wrapped: %w", missing), true},
		"fails if services are required":                             {"1", "", missing, false},
		"fails if services are required and another one is optional": {"1", "mysql,rabbitmq", missing, false},
		"skips if services are required and this one is optional":    {"1", "mysql,kafka", missing, true},
		"fails if an installed server does not start":                {"", "", errors.New("port taken"), false},
		"fails if an installed optional server does not start":       {"", "kafka", errors.New("port taken"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("REQUIRE_SERVICES", c.required)
			t.Setenv("OPTIONAL_SERVICES", c.optional)
			var v verdict
			Need(&v, c.err)
			want := verdict{failed: c.err.Error()}
			if c.skips {
				want = verdict{skipped: c.err.Error()}
				require.Contains(t, v.skipped, "TEST_KAFKA_BROKERS")
				require.Contains(t, v.skipped, "integration/install.sh kafka")
			}
			require.Equal(t, want, v)
		})
	}
	var v verdict
	Need(&v, nil)
	require.Zero(t, v)
}

func TestServer_ExternalIsNotOurs(t *testing.T) {
	s := server{name: "kafka", external: true}
	require.ErrorIs(t, s.Kill(), ErrExternal)
	require.ErrorIs(t, s.Stop(), ErrExternal)
	require.ErrorIs(t, s.Pause(), ErrExternal)
	require.ErrorIs(t, s.Start(t.Context()), ErrExternal)
	require.NoError(t, s.Close())
}
