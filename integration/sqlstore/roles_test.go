package sqlstore_test

import (
	"io"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	idempotency "github.com/redrive-go/redrive/middleware/idempotency/sqlstore"
)

// An error about a role that may not create tables names the remedy, from everything that keeps rows in a database,
// by a URL or in a pool. Once the tables exist, the rights that it names are enough.
func TestOpen_RoleMayCreateNothing(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, owner string) {
		t.Helper()
		u, err := url.Parse(owner)
		require.NoError(t, err)
		admin, name := openDB(t, owner), u.Path[1:]
		app := name + "_app"
		grant := []string{
			"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public, archive TO " + app,
			"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO " + app, "GRANT USAGE ON SCHEMA archive TO " + app,
		}
		create, drop := "CREATE ROLE "+app+" LOGIN", []string{"DROP OWNED BY " + app, "DROP ROLE " + app}
		if u.Scheme == "mysql" {
			app = "'" + name[:min(len(name), 28)] + "_app'@'127.0.0.1'"
			create, drop = "CREATE USER "+app, []string{"DROP USER " + app}
			grant = []string{"GRANT SELECT, INSERT, UPDATE, DELETE ON " + name + ".* TO " + app}
		}
		run := func(statements ...string) {
			for _, statement := range statements {
				_, err := admin.ExecContext(t.Context(), statement)
				require.NoError(t, err, statement)
			}
		}
		run(create)
		defer func() { run(drop...) }()
		u.User = url.User(strings.Trim(strings.Split(app, "@")[0], "'"))
		pool, d := openDB(t, u.String()), sqlstore.Dialect(u.Scheme)
		ctx := t.Context()
		for _, fails := range []bool{true, false} {
			for what, open := range map[string]func() error{
				"store":         func() error { return closed(sqlstore.Open(ctx, u.String())) },
				"store's pool":  func() error { return closed(sqlstore.New(ctx, pool, sqlstore.Config{Dialect: d})) },
				"queue":         func() error { return closed(brokers.Open(ctx, u.String())) },
				"queue's pool":  func() error { return closed(sqlqueue.New(ctx, pool, d)) },
				"guard's store": func() error { _, err := idempotency.New(ctx, pool, d); return err },
			} {
				err := open()
				if !fails {
					require.NoError(t, err, what)
					continue
				}
				for _, advice := range []string{"redrive migrate", "migrate=false", "grant"} {
					require.ErrorContains(t, err, advice, what)
				}
				if u.Scheme == "postgres" && strings.HasPrefix(what, "store") {
					require.ErrorContains(t, err, "archive=")
				}
			}
			if fails {
				db := openDB(t, owner)
				require.NoError(t, openStore(t, owner).Close())
				require.NoError(t, sqlqueue.Migrate(ctx, db, d))
				_, err := idempotency.New(ctx, db, d)
				require.NoError(t, err)
				run(grant...)
			}
		}
	})
}

func closed(c io.Closer, err error) error {
	if err != nil {
		return err
	}
	return c.Close()
}
