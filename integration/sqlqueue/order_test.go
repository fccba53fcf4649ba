package sqlqueue_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/integration/services"
)

// A claim that reaches the end of its queue must not lock the next row in the index, which is the first message of the
// next queue: claims of that queue would skip it, and its messages would be delivered out of order.
func TestOrder_NextToABusyQueue(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		queue := openQueue(t, with(url, "x-poll=2ms"))
		busy, err := queue.Subscriber().Subscribe(t.Context(), "busy") // its rows precede the others in the index
		require.NoError(t, err)
		ordered, err := queue.Subscriber().Subscribe(t.Context(), "ordered")
		require.NoError(t, err)
		done := make(chan struct{})
		var others sync.WaitGroup
		defer others.Wait()
		defer close(done)
		others.Go(func() {
			for {
				select {
				case m := <-busy:
					m.Ack()
				case <-done:
					return
				}
			}
		})
		others.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := queue.Publisher().Publish("busy", message.NewMessage("noise", payload)); err != nil {
					return
				}
			}
		})

		const n = 400
		others.Go(func() {
			for i := range n {
				if err := queue.Publisher().Publish("ordered", message.NewMessage(strconv.Itoa(i), payload)); err != nil {
					return
				}
			}
		})
		var sent, came []string // compared at the end, because the positions of the others show the cause
		for i := range n {
			m := receive(t, ordered)
			sent, came = append(sent, strconv.Itoa(i)), append(came, m.UUID)
			m.Ack()
		}
		require.Equal(t, sent, came)
	})
}

// A row may become visible a moment before the lock of its commit is released. A claim in that moment must not return
// messages published after that row, in the same transaction or since.
func TestOrder_OfRowsThatAreBeingCommitted(t *testing.T) {
	t.Parallel()
	for _, server := range []string{"MariaDB", "MySQL"} {
		for name, first := range map[string]int{"in one transaction": 4, "one after the other": 1} {
			t.Run(server+" "+name, func(t *testing.T) {
				t.Parallel()
				url := servers[server](t)
				db, producer := openDB(t, url), openQueue(t, url)
				require.NoError(t, producer.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("jobs"))
				var list []*message.Message
				for i := range 4 {
					list = append(list, message.NewMessage(strconv.Itoa(i), payload))
				}
				require.NoError(t, producer.Publisher().Publish("jobs", list[:first]...))
				lock, err := db.BeginTx(t.Context(), nil)
				require.NoError(t, err)
				defer func() { _ = lock.Rollback() }() // it has ended, unless the test has failed
				_, err = lock.ExecContext(t.Context(), fmt.Sprintf("SELECT 1 FROM redrive_queue_messages WHERE id = %d FOR UPDATE",
					count(t, db, "SELECT min(id) FROM redrive_queue_messages")))
				require.NoError(t, err)

				// The lock is released once a claim has met it, and the publisher continues.
				var met sync.Once
				over := make(chan error, 1)
				tapped := openTapped(t, url, func(query string) {
					if strings.Contains(query, "visible_at") && strings.Contains(query, "SKIP LOCKED") {
						met.Do(func() {
							err := lock.Rollback()
							for _, m := range list[first:] {
								if err == nil {
									err = producer.Publisher().Publish("jobs", m)
								}
							}
							over <- err
						})
					}
				})
				queue, err := sqlqueue.New(t.Context(), tapped, sqlqueue.MySQL)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, queue.Close()) })
				messages, err := queue.Subscriber().Subscribe(t.Context(), "jobs")
				require.NoError(t, err)
				var came []string
				for range list {
					m := receive(t, messages)
					came = append(came, m.UUID)
					m.Ack()
				}
				require.NoError(t, <-over)
				require.Equal(t, []string{"0", "1", "2", "3"}, came)
			})
		}
	}
}

// A claim for several rows finds the first one of a transaction still locked, and must not return only the others. A
// locked row makes claims large: each claim that finds nothing else reads twice as many rows.
func TestOrder_OfATransactionThatALargeClaimMeets(t *testing.T) {
	t.Parallel()
	for _, server := range []string{"MariaDB", "MySQL"} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			largeClaimMeetsATransaction(t, servers[server](t))
		})
	}
}

func largeClaimMeetsATransaction(t *testing.T, url string) {
	t.Helper()
	db, producer := openDB(t, url), openQueue(t, url)
	require.NoError(t, producer.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("jobs"))
	publish := func(uuids ...string) error {
		var list []*message.Message
		for _, uuid := range uuids {
			list = append(list, message.NewMessage(uuid, payload))
		}
		return producer.Publisher().Publish("jobs", list...)
	}
	lockRow := func(uuid string) (id string, lock *sql.Tx, err error) {
		lock, err = db.BeginTx(context.WithoutCancel(t.Context()), nil)
		if err != nil {
			return "", nil, err
		}
		t.Cleanup(func() { _ = lock.Rollback() }) // it may have ended
		// It is locked by its id, because a locking read that scans would wait for the other locked row.
		err = lock.QueryRowContext(t.Context(), "SELECT id FROM redrive_queue_messages WHERE uuid = ?", uuid).Scan(&id)
		if err == nil {
			_, err = lock.ExecContext(t.Context(), "SELECT 1 FROM redrive_queue_messages WHERE id = ? FOR UPDATE", id)
		}
		return id, lock, err
	}
	require.NoError(t, publish("locked"))
	_, _, err := lockRow("locked")
	require.NoError(t, err)

	var first string // the id of the transaction's first row
	var lock *sql.Tx
	fault := make(chan error, 2)
	tapped := openTapped(t, url, func(query string) {
		var err error
		switch {
		case first == "" && strings.HasSuffix(query, "LIMIT 8"): // this claim has read only the locked row
			if err = publish("0", "1", "2", "3"); err == nil {
				first, lock, err = lockRow("0")
			}
		case lock != nil && strings.HasSuffix(query, "SKIP LOCKED") && strings.Contains(query, ","+first+","):
			err = lock.Rollback()
			lock = nil
		}
		if err != nil {
			fault <- err
		}
	})
	queue, err := sqlqueue.New(t.Context(), tapped, sqlqueue.MySQL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, queue.Close()) })
	messages, err := queue.Subscriber().Subscribe(t.Context(), "jobs")
	require.NoError(t, err)
	var came []string
	for range 4 {
		m := receive(t, messages)
		came = append(came, m.UUID)
		m.Ack()
	}
	require.Empty(t, fault)
	require.Equal(t, []string{"0", "1", "2", "3"}, came)
}

// openTapped opens a MySQL or MariaDB, and calls asked after each query, one at a time: maintenance queries too.
func openTapped(t *testing.T, url string, asked func(query string)) *sql.DB {
	t.Helper()
	dsn, err := services.MySQLDSN(url)
	require.NoError(t, err)
	connector, err := mysql.MySQLDriver{}.OpenConnector(with(dsn, "interpolateParams=true")) // otherwise some are prepared
	require.NoError(t, err)
	var one sync.Mutex
	db := sql.OpenDB(&tappedConnector{connector, func(query string) {
		one.Lock()
		defer one.Unlock()
		asked(query)
	}})
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

type tappedConnector struct {
	driver.Connector
	asked func(query string)
}

func (c *tappedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &tappedConn{conn, c.asked}, nil
}

type tappedConn struct {
	driver.Conn
	asked func(query string)
}

func (c *tappedConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	return c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
}

func (c *tappedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	rows, err := c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
	if err == nil {
		c.asked(query)
	}
	return rows, err
}
