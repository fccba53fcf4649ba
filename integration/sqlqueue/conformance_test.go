package sqlqueue_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// TestConformance runs the conformance suite, including Watermill's, on every server.
func TestConformance(t *testing.T) {
	for name, database := range servers {
		t.Run(name, func(t *testing.T) {
			shared := database(t)
			open := func(t *testing.T, cfg brokers.Config, url string) (brokers.Broker, error) {
				t.Helper()
				cfg.URL = with(url, "x-max-connections=4"+limits[name])
				return brokers.OpenConfig(t.Context(), cfg)
			}
			backend := func(url string) brokertest.Backend {
				return brokertest.Backend{
					Open:      func(cfg brokers.Config) (brokers.Broker, error) { return open(t, cfg, url) },
					OpenOther: func(cfg brokers.Config) (brokers.Broker, error) { return open(t, cfg, database(t)) },
					Lock:      func(t *testing.T, id string) func() { t.Helper(); return lockRow(t, openDB(t, url), id) },
					Delete: func(t *testing.T, id string) {
						t.Helper()
						db := openDB(t, url)
						_, err := db.ExecContext(t.Context(),
							fmt.Sprintf("DELETE FROM redrive_queue_messages WHERE id = %d", rowOf(t, db, id)))
						require.NoError(t, err)
					},
				}
			}
			brokertest.Run(t, brokertest.Harness{
				Backend: func(*testing.T) brokertest.Backend { return backend(shared) },
				Alone: func(t *testing.T) brokertest.Backend {
					t.Helper()
					url := database(t)
					b := backend(url)
					b.Erase = func(t *testing.T, _ string, _ brokers.Names) { t.Helper(); truncate(t, openDB(t, url)) }
					return b
				},
				Factor: 0.02,
				Late:   4 * time.Second, // the cases run in parallel; TestDelay_IsExact tests the accuracy
				Watermill: &tests.Features{
					ConsumerGroups:                      true,
					GuaranteedOrder:                     true,
					GuaranteedOrderWithSingleSubscriber: true,
					Persistent:                          true,
					ForceShort:                          true,
				},
			})
		})
	}
}

// limits replace a server's own limit if that is too large for a test; on the others the packet size is the limit.
var limits = map[string]string{"PostgreSQL": "&x-max-message=1MiB"}

// rowOf returns the key of a message's row.
func rowOf(t *testing.T, db *sql.DB, uuid string) int {
	t.Helper()
	return count(t, db, "SELECT id FROM redrive_queue_messages WHERE uuid = '"+uuid+"'")
}

// lockRow locks a message's row, by its key, which locks no others, until the returned function is called.
func lockRow(t *testing.T, db *sql.DB, uuid string) (unlock func()) {
	t.Helper()
	id := rowOf(t, db, uuid)
	tx, err := db.BeginTx(context.Background(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), fmt.Sprintf("SELECT id FROM redrive_queue_messages WHERE id = %d FOR UPDATE", id))
	require.NoError(t, err)
	return func() { _ = tx.Rollback() }
}

// truncate empties the queue's tables. The ids of messages start over, and queues get new ones.
func truncate(t *testing.T, db *sql.DB) {
	t.Helper()
	statements := []string{"TRUNCATE TABLE redrive_queue_messages", "DELETE FROM redrive_queues"}
	if _, err := db.ExecContext(t.Context(), "SELECT id FROM redrive_queue_leases LIMIT 1"); err == nil { // PostgreSQL
		statements[0] += ", redrive_queue_leases RESTART IDENTITY"
	}
	for _, statement := range statements {
		operate(t, db, statement)
	}
}

// operate runs an operator's statement. It is repeated where the server ends it because of the consumers' locks.
func operate(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	require.NoError(t, sqldb.PostgreSQL.Retry(t.Context(), db, nil, sqldb.MySQL.Conflict, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(t.Context(), statement)
		return err
	}))
}
