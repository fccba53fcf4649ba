package sqlqueue_test

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
)

// TestConformance runs the suite on SQLite; PostgreSQL and MariaDB pass it in the integration module.
func TestConformance(t *testing.T) {
	brokertest.Run(t, brokertest.Harness{
		Backend: func(t *testing.T) brokertest.Backend {
			t.Helper()
			// No case cuts the power, and the cases would mostly wait for the disk.
			const params = "x-max-message=1MiB&_pragma=synchronous(off)"
			url := fileURL(t, params)
			open := func(cfg brokers.Config, url string) (brokers.Broker, error) {
				cfg.URL = url
				return brokers.OpenConfig(t.Context(), cfg)
			}
			return brokertest.Backend{
				Open:      func(cfg brokers.Config) (brokers.Broker, error) { return open(cfg, url) },
				OpenOther: func(cfg brokers.Config) (brokers.Broker, error) { return open(cfg, fileURL(t, params)) },
				Delete: func(t *testing.T, id string) {
					t.Helper()
					operate(t, url, "DELETE FROM redrive_queue_messages WHERE uuid = ?", id)
				},
				Erase: func(t *testing.T, _ string, _ brokers.Names) {
					t.Helper()
					operate(t, url, `DELETE FROM redrive_queue_messages; DELETE FROM redrive_queues;
						DELETE FROM sqlite_sequence WHERE name = 'redrive_queue_messages'`)
				},
			}
		},
		Factor: 0.004,           // ten seconds of a timeline take 40 ms
		Late:   4 * time.Second, // the cases run in parallel on one disk; TestDelay_IsExact tests the accuracy
		Quiet:  200 * time.Millisecond,
		Volume: 300,
		Watermill: &tests.Features{
			ConsumerGroups:                      true,
			GuaranteedOrder:                     true,
			GuaranteedOrderWithSingleSubscriber: true,
			Persistent:                          true,
			ForceShort:                          true,
		},
	})
}

// operate runs statements as an operator would, on a separate connection.
func operate(t *testing.T, url, statements string, args ...any) {
	t.Helper()
	path, _, _ := strings.Cut(strings.TrimPrefix(url, "sqlite://"), "?")
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)")
	require.NoError(t, err)
	defer db.Close()
	_, err = db.ExecContext(t.Context(), statements, args...)
	require.NoError(t, err)
}
