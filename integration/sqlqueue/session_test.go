package sqlqueue_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/integration/services"
	processed "github.com/redrive-go/redrive/middleware/idempotency/sqlstore"
)

// The operator of a server chooses what its sessions begin with. What Publish has confirmed is committed nevertheless,
// for every group of the topic.
func TestSession_OfTheServer(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB, services.MySQLConfig) *services.MySQLServer{
		"MariaDB": services.MariaDB, "MySQL": services.MySQL,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, services.MySQLConfig{
				Args: []string{"--autocommit=0", "--completion-type=1", "--sql-mode="},
			})
			url := server.Database(t)
			db := openDB(t, with(url, "autocommit=1&completion_type=0&sql_select_limit=100"))
			_, err := db.ExecContext(t.Context(), "SET GLOBAL sql_select_limit = 1")
			require.NoError(t, err)
			queue := openQueue(t, url)
			groups := map[string]<-chan *message.Message{}
			for _, group := range []string{"one", "two"} {
				messages, err := queue.Subscriber(brokers.WithGroup(group)).Subscribe(t.Context(), "jobs")
				require.NoError(t, err)
				groups[group] = messages
			}
			require.NoError(t, queue.Publisher().Publish("jobs", message.NewMessage("1", payload)))
			for group, messages := range groups {
				m := receive(t, messages)
				require.Equal(t, "1", m.UUID, group)
				m.Ack()
			}
			require.NoError(t, queue.Publisher().Publish("later", message.NewMessage("2", payload)))
			require.NoError(t, queue.Close())
			require.Equal(t, 1, count(t, db, "SELECT count(*) FROM redrive_queue_messages"))
		})
	}
}

// A pool of the application that would lose or truncate rows without an error is refused.
func TestSession_OfTheApplicationsPool(t *testing.T) {
	t.Parallel()
	for params, want := range map[string]string{
		"autocommit=0":       "autocommit=1",
		"completion_type=1":  "completion_type=0",
		"sql_select_limit=9": "sql_select_limit=18446744073709551615",
		"sql_mode=%27%27":    "sql_mode='STRICT_ALL_TABLES'",
	} {
		for _, server := range []string{"MariaDB", "MySQL"} {
			db := openDB(t, with(servers[server](t), params))
			_, err := sqlqueue.New(t.Context(), db, sqlqueue.MySQL)
			require.ErrorContains(t, err, want, server)
			_, err = sqlstore.New(t.Context(), db, sqlstore.Config{Dialect: sqlstore.MySQL})
			require.ErrorContains(t, err, want, server)
			_, err = processed.New(t.Context(), db, processed.MySQL)
			require.ErrorContains(t, err, want, server)
		}
	}
}
