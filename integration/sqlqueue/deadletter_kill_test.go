package sqlqueue_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/kill9"
	"github.com/redrive-go/redrive/middleware"
)

// clerkURL names the database of a clerk process.
const clerkURL = "REDRIVE_TEST_CLERK_URL"

// A clerk dies right before the commit of a transaction, or right after it.
const (
	inTransaction = "in the transaction"
	afterCommit   = "after the commit"
)

// clerk rejects all employees until it dies.
func clerk(url string) int {
	if err := reject(context.Background(), url); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return 1
}

func reject(ctx context.Context, url string) error {
	b, err := brokers.Open(ctx, with(url, "x-lease=1s&x-poll=10ms&x-nack-pause=10ms"))
	if err != nil {
		return err
	}
	queue, _ := b.(*sqlqueue.Broker)
	quiet := slog.New(slog.DiscardHandler)
	letters, err := dlq.Open(ctx, url, dlq.WithoutSpool(), dlq.WithLogger(quiet))
	if err != nil {
		return err
	}
	pipeline, err := middleware.New(middleware.Config{
		DeadLetters: letters, Rescheduler: queue, Logger: quiet, MaxAttempts: 1,
	})
	if err != nil {
		return err
	}
	messages, err := queue.Subscriber(brokers.WithConcurrency(4)).Subscribe(ctx, "employees")
	if err != nil {
		return err
	}
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for m := range messages {
				ctx := m.Context()
				err := sqlqueue.InTx(ctx, func(tx *sql.Tx) error {
					m.SetContext(dlq.ContextWithTx(ctx, tx))
					defer m.SetContext(ctx)
					_, err := pipeline.Middleware(func(m *message.Message) ([]*message.Message, error) {
						_, err := tx.ExecContext(ctx, "INSERT INTO employees VALUES ('"+m.UUID+"')")
						if err == nil {
							err = queue.TxPublisher(tx).Publish("rejected", message.NewMessage(m.UUID, nil))
						}
						if err != nil {
							return nil, err
						}
						return nil, middleware.Permanent(errors.New("invalid CPF"))
					})(m)
					kill9.At(inTransaction)
					return err // nil if the dead letter is part of the transaction
				})
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					m.Nack()
					continue
				}
				kill9.At(afterCommit)
				m.Ack()
			}
		})
	}
	workers.Wait()
	return errors.New("the subscription has ended")
}

// The application's row, its event, the dead letter and the ack are in one transaction, even if processes are killed
// with kill -9 during it or right after it. At any time there are equally many of each, and none twice.
func TestDeadLetter_OneTransactionWhenProcessesAreKilled(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, url string) {
		t.Helper()
		const n = 100
		db, queue := openDB(t, url), openQueue(t, url)
		for _, topic := range []string{"employees", "rejected"} {
			require.NoError(t, queue.Subscriber().(message.SubscribeInitializer).SubscribeInitialize(topic))
		}
		_, err := db.ExecContext(t.Context(), "CREATE TABLE employees (id VARCHAR(20))")
		require.NoError(t, err)
		letters, err := dlq.Open(t.Context(), url, dlq.WithoutSpool())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, letters.Close()) })
		var list []*message.Message
		for i := range n {
			list = append(list, message.NewMessage(fmt.Sprintf("employee-%d", i), payload))
		}
		require.NoError(t, queue.Publisher().Publish("employees", list...))

		for _, where := range []string{inTransaction, afterCommit, afterCommit, inTransaction} {
			kill9.Until(t, where, clerkURL+"="+url)
			employees, dead, waits, rejected := waiting(t, db)
			require.Equal(t, []int{employees, employees, n - employees}, []int{dead, rejected, waits},
				"%d employees; dead letters, events, messages that wait after a kill %s", employees, where)
		}
		kill9.Start(t, "", clerkURL+"="+url)
		await.True(t, func() bool {
			_, _, waits, _ := waiting(t, db)
			return waits == 0
		}, "a message was not handled")
		employees, dead, _, rejected := waiting(t, db)
		require.Equal(t, []int{n, n, n}, []int{employees, dead, rejected}, "employees, dead letters, events")
		require.Equal(t, n, count(t, db, "SELECT count(DISTINCT id) FROM employees"))
		listing, err := letters.Store().List(t.Context(), dlq.Filter{}, dlq.Page{Limit: n})
		require.NoError(t, err)
		require.Len(t, listing.Entries, n)
		for _, e := range listing.Entries {
			require.Equal(t, 1, e.SeenCount, "%s was stored by a delivery that was rolled back", e.EventID)
		}
	})
}
