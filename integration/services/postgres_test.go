package services_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/services"
)

func dialPostgres(t *testing.T, u string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), u)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn
}

func TestSharedPostgres_Database(t *testing.T) {
	p := services.SharedPostgres(t)
	first, second := dialPostgres(t, p.Database(t)), dialPostgres(t, p.Database(t))

	_, err := first.Exec(t.Context(), "CREATE TABLE orders (id int)")
	require.NoError(t, err)
	_, err = second.Exec(t.Context(), "CREATE TABLE orders (id int)")
	require.NoError(t, err, "databases do not share tables")
}

func TestPostgres_KilledKeepsCommittedRows(t *testing.T) {
	p := services.Postgres(t, services.PostgresConfig{Durable: true, Settings: map[string]string{"max_connections": "33"}})
	conn := dialPostgres(t, p.URL)
	for setting, want := range map[string]string{
		"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
		"max_connections": "33",
	} {
		var got string
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT current_setting($1)", setting).Scan(&got))
		require.Equal(t, want, got, setting)
	}
	_, err := conn.Exec(t.Context(), "CREATE TABLE kept AS SELECT 42 AS n")
	require.NoError(t, err)

	require.NoError(t, p.Kill())
	require.Error(t, conn.Ping(t.Context()))
	require.NoError(t, p.Start(t.Context()))

	var n int
	require.NoError(t, dialPostgres(t, p.URL).QueryRow(t.Context(), "SELECT n FROM kept").Scan(&n))
	require.Equal(t, 42, n)
}

func TestPostgres_PausedDoesNotAnswer(t *testing.T) {
	p := services.Postgres(t, services.PostgresConfig{})
	conn := dialPostgres(t, p.URL)

	require.NoError(t, p.Pause())
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, conn.Ping(ctx), context.DeadlineExceeded)

	require.NoError(t, p.Resume())
	require.NoError(t, dialPostgres(t, p.URL).Ping(t.Context()))
}
