package sqlqueue_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqlqueue"
)

// fileURL returns the URL of a new database file, with parameters.
func fileURL(t testing.TB, params string) string {
	t.Helper()
	return "sqlite://" + filepath.Join(t.TempDir(), "queue.db") + "?" + params
}

// openURL opens a queue that the test closes.
func openURL(t testing.TB, url string) *sqlqueue.Broker {
	t.Helper()
	b, err := brokers.Open(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	queue, ok := b.(*sqlqueue.Broker)
	require.True(t, ok)
	return queue
}
