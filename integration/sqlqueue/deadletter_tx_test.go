package sqlqueue_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/dlq"
	_ "github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/middleware"
)

// office is a database with a queue, a dead letter store and a table of the application.
type office struct {
	db      *sql.DB
	queue   *sqlqueue.Broker
	letters *dlq.Letters
	// refuse makes a transaction fail at its end, on databases without deferred constraints.
	refuse  func(ctx context.Context, tx *sql.Tx) error
	refused string // in the error of such a transaction
}

// newOffice returns an office in which no transaction with an employee can commit while there is no company. On
// PostgreSQL and SQLite the COMMIT fails; on MariaDB, which has no deferred constraints, the connection is lost before
// it.
func newOffice(t *testing.T, url string) *office {
	t.Helper()
	o := &office{db: openDB(t, url)}
	settings, reference := "x-nack-pause=10ms", "VARCHAR(20) REFERENCES companies DEFERRABLE INITIALLY DEFERRED"
	switch scheme, _, _ := strings.Cut(url, ":"); scheme {
	case "mysql":
		reference = "VARCHAR(20)"
		o.refuse, o.refused = o.loseConnection, "onnection"
	case "sqlite":
		settings += "&x-poll=10ms&_pragma=foreign_keys(1)"
		o.refused = "FOREIGN KEY constraint failed"
	default:
		o.refused = "employees_company_fkey"
	}
	o.queue = openQueue(t, with(url, settings))
	for _, statement := range []string{
		"CREATE TABLE companies (id VARCHAR(20) PRIMARY KEY)",
		"CREATE TABLE employees (id VARCHAR(20) PRIMARY KEY, company " + reference + ")",
	} {
		_, err := o.db.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	var err error
	o.letters, err = dlq.Open(t.Context(), url, dlq.WithSpool(t.TempDir()), dlq.WithStoreTimeout(await.Patience))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, o.letters.Close()) })
	return o
}

// loseConnection kills the connection of tx while there is no company.
func (o *office) loseConnection(ctx context.Context, tx *sql.Tx) error {
	var companies, connection int64
	if err := tx.QueryRowContext(ctx, "SELECT count(*), connection_id() FROM companies").Scan(&companies,
		&connection); err != nil || companies > 0 {
		return err
	}
	_, err := o.db.ExecContext(ctx, fmt.Sprintf("KILL %d", connection))
	return err
}

// hire marks an employee as invalid and publishes that, in tx.
func (o *office) hire(ctx context.Context, tx *sql.Tx, id string) error {
	if _, err := tx.ExecContext(ctx, "INSERT INTO employees VALUES ('"+id+"', 'acme')"); err != nil {
		return err
	}
	return o.queue.TxPublisher(tx).Publish("rejected", message.NewMessage(id, nil))
}

// run consumes "employees" with the pipeline, and a middleware around it, until the test ends.
func (o *office) run(t *testing.T, around message.HandlerMiddleware, handler message.NoPublishHandlerFunc) {
	t.Helper()
	pipeline, err := middleware.New(middleware.Config{
		DeadLetters: o.letters, Rescheduler: o.queue, Logger: slog.New(slog.DiscardHandler),
		MaxAttempts: 1,
	})
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(around, pipeline.Middleware)
	router.AddConsumerHandler("hire", "employees", o.queue.Subscriber(), handler)
	ended := await.Run(context.WithoutCancel(t.Context()), t, router)
	t.Cleanup(func() {
		require.NoError(t, router.Close())
		require.NoError(t, <-ended)
	})
}

// waiting counts, in one statement, rows of the application, dead letters, messages to be handled, and published
// messages.
func (o *office) waiting(t *testing.T) (employees, letters, messages, rejected int) {
	t.Helper()
	return waiting(t, o.db)
}

func waiting(t *testing.T, db *sql.DB) (employees, letters, messages, rejected int) {
	t.Helper()
	topics, err := db.QueryContext(t.Context(),
		`SELECT q.topic, (SELECT count(*) FROM employees), (SELECT count(*) FROM dlq_entries),
		(SELECT count(*) FROM redrive_queue_messages m WHERE m.queue_id = q.id) FROM redrive_queues q`)
	require.NoError(t, err)
	defer func() { require.NoError(t, topics.Close()) }()
	waits := map[string]int{}
	for topics.Next() {
		var topic string
		var n int
		require.NoError(t, topics.Scan(&topic, &employees, &letters, &n))
		waits[topic] = n
	}
	require.NoError(t, topics.Err())
	require.Contains(t, waits, "employees")
	require.Contains(t, waits, "rejected")
	return employees, letters, waits["employees"], waits["rejected"]
}

func alone(next message.HandlerFunc) message.HandlerFunc { return next }

// The handler's change, its published message, the dead letter for its failure and the ack of the message are in one
// transaction. If the commit fails, none of them has happened, and the message is redelivered.
func TestDeadLetter_OneTransaction(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, url string) {
		t.Helper()
		o := newOffice(t, url)
		require.NoError(t, o.queue.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("rejected"))
		type txKey struct{}
		attempts := make(chan error, 1000)
		o.run(t, func(next message.HandlerFunc) message.HandlerFunc {
			return func(m *message.Message) ([]*message.Message, error) {
				ctx := m.Context()
				err := sqlqueue.InTx(ctx, func(tx *sql.Tx) error {
					m.SetContext(context.WithValue(dlq.ContextWithTx(ctx, tx), txKey{}, tx))
					defer m.SetContext(ctx)
					if _, err := next(m); err != nil || o.refuse == nil {
						return err // nil when the pipeline has settled the message
					}
					return o.refuse(ctx, tx)
				})
				attempts <- err
				return nil, err
			}
		}, func(m *message.Message) error {
			tx, _ := m.Context().Value(txKey{}).(*sql.Tx)
			if err := o.hire(m.Context(), tx, m.UUID); err != nil {
				return err
			}
			return middleware.Permanent(errors.New("invalid CPF"))
		})
		require.NoError(t, o.queue.Publisher().Publish("employees", message.NewMessage("ana", payload)))

		require.ErrorContains(t, <-attempts, o.refused)
		employees, letters, messages, rejected := o.waiting(t)
		require.Equal(t, []int{0, 0, 1, 0}, []int{employees, letters, messages, rejected},
			"all were rolled back; the message is still in the queue")
		_, err := o.db.ExecContext(t.Context(), "INSERT INTO companies VALUES ('acme')")
		require.NoError(t, err)
		for err = range attempts {
			if err == nil {
				break
			}
			require.ErrorContains(t, err, o.refused)
		}
		employees, letters, messages, rejected = o.waiting(t)
		require.Equal(t, []int{1, 1, 0, 1}, []int{employees, letters, messages, rejected}, "all were committed, with the ack")
		require.Zero(t, o.letters.Stats().Appended, "the spool was not needed")
	})
}

// If a handler fails inside its own transaction, that is rolled back first, with the change and the published message,
// and the dead letter is stored in a new one.
func TestDeadLetter_HandlerFailsInItsTransaction(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(ctx context.Context, tx *sql.Tx) error{
		"a rule of the application fails": func(context.Context, *sql.Tx) error { return errors.New("invalid CPF") },
		"a statement fails": func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO no_such_table VALUES (1)")
			return err
		},
		"it panics": func(context.Context, *sql.Tx) error { panic("invalid CPF") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEachDatabase(t, func(t *testing.T, url string) {
				t.Helper()
				o := newOffice(t, url)
				_, err := o.db.ExecContext(t.Context(), "INSERT INTO companies VALUES ('acme')") // so that a commit would succeed
				require.NoError(t, err)
				require.NoError(t, o.queue.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("rejected"))
				inside := make(chan int, 1000)
				o.run(t, alone, func(m *message.Message) error {
					err := sqlqueue.InTx(m.Context(), func(tx *sql.Tx) error {
						if err := o.hire(m.Context(), tx, m.UUID); err != nil {
							return err
						}
						var n int
						if err := tx.QueryRowContext(m.Context(), "SELECT count(*) FROM employees").Scan(&n); err != nil {
							return err
						}
						inside <- n
						return spoil(m.Context(), tx)
					})
					return middleware.Permanent(err)
				})
				require.NoError(t, o.queue.Publisher().Publish("employees", message.NewMessage("ana", payload)))
				require.Equal(t, 1, <-inside)
				await.True(t, func() bool {
					_, letters, messages, _ := o.waiting(t)
					return letters == 1 && messages == 0
				}, "one dead letter, and the message is acked")
				employees, letters, _, rejected := o.waiting(t)
				require.Equal(t, []int{0, 1, 0}, []int{employees, letters, rejected}, "employees, dead letters, publishes")
				require.Empty(t, inside, "the message is not handled again")
				require.Zero(t, o.letters.Stats().Appended, "the spool was not needed")
			})
		})
	}
}
