package services

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// verdict is a testing.TB that notes how the test would have ended.
type verdict struct {
	testing.TB
	skipped, failed string
}

func (*verdict) Helper()            {}
func (v *verdict) Skip(why ...any)  { v.skipped = fmt.Sprint(why...) }
func (v *verdict) Fatal(why ...any) { v.failed = fmt.Sprint(why...) }

func TestNeed(t *testing.T) {
	missing := &UnavailableError{Service: "kafka", Env: "TEST_KAFKA_BROKERS", Cause: os.ErrNotExist}

	t.Run("skips with what to do when a server is missing", func(t *testing.T) {
		t.Setenv("REQUIRE_SERVICES", "")
		var v verdict
		Need(&v, fmt.Errorf("wrapped: %w", missing))
		require.Empty(t, v.failed)
		require.Contains(t, v.skipped, "TEST_KAFKA_BROKERS")
		require.Contains(t, v.skipped, "integration/install.sh kafka")
	})
	t.Run("fails when services are required", func(t *testing.T) {
		t.Setenv("REQUIRE_SERVICES", "1")
		var v verdict
		Need(&v, missing)
		require.Empty(t, v.skipped)
		require.NotEmpty(t, v.failed)
	})
	t.Run("fails when services are required and another one is optional", func(t *testing.T) {
		t.Setenv("REQUIRE_SERVICES", "1")
		t.Setenv("OPTIONAL_SERVICES", "mysql,rabbitmq")
		var v verdict
		Need(&v, missing)
		require.Empty(t, v.skipped)
		require.NotEmpty(t, v.failed)
	})
	t.Run("skips when services are required and this one is optional", func(t *testing.T) {
		t.Setenv("REQUIRE_SERVICES", "1")
		t.Setenv("OPTIONAL_SERVICES", "mysql,kafka")
		var v verdict
		Need(&v, missing)
		require.NotEmpty(t, v.skipped)
		require.Empty(t, v.failed)
	})
	t.Run("fails when a server that is there does not start", func(t *testing.T) {
		t.Setenv("REQUIRE_SERVICES", "")
		t.Setenv("OPTIONAL_SERVICES", "kafka")
		var v verdict
		Need(&v, errors.New("port taken"))
		require.Empty(t, v.skipped)
		require.Equal(t, "port taken", v.failed)
	})
	t.Run("goes on without an error", func(t *testing.T) {
		var v verdict
		Need(&v, nil)
		require.Zero(t, v)
	})
}

func TestServer_ExternalIsNotOurs(t *testing.T) {
	s := server{name: "kafka", external: true}
	require.ErrorIs(t, s.Kill(), ErrExternal)
	require.ErrorIs(t, s.Stop(), ErrExternal)
	require.ErrorIs(t, s.Pause(), ErrExternal)
	require.ErrorIs(t, s.Start(t.Context()), ErrExternal)
	require.NoError(t, s.Close())
}
