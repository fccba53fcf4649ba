package sqlstore_test

import (
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/integration/services"
)

// An application's pool whose sessions would change or hide letters is refused, whether letters are written through it
// or read. London has the time of UTC in winter, and not in summer. A pool for reads whose server is down is no reason
// to store nothing.
func TestNew_Pools(t *testing.T) {
	t.Parallel()
	const plain = "charset=utf8mb4&sql_mode=%27STRICT_ALL_TABLES%27"
	faults := map[string]string{
		"loc=America%2FSao_Paulo": "remove loc", "loc=Europe%2FLondon": "remove loc", "sql_select_limit=2": "sql_select_limit",
	}
	for name, server := range map[string]func(testing.TB) *services.MySQLServer{
		"MariaDB": services.SharedMariaDB, "MySQL": services.SharedMySQL,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := with(server(t).Database(t), plain)
			for fault, advice := range faults {
				good, bad := openDB(t, url), openDB(t, with(url, fault))
				_, err := sqlstore.New(t.Context(), bad, sqlstore.Config{Dialect: sqlstore.MySQL})
				require.ErrorContains(t, err, advice, fault)
				_, err = sqlstore.New(t.Context(), good, sqlstore.Config{Dialect: sqlstore.MySQL, Read: bad})
				require.ErrorContains(t, err, advice, fault)
			}
			down, err := sql.Open("mysql", "root@tcp(127.0.0.1:1)/test")
			require.NoError(t, err)
			defer down.Close()
			for _, read := range []*sql.DB{openDB(t, url), down} {
				s, err := sqlstore.New(t.Context(), openDB(t, url), sqlstore.Config{Dialect: sqlstore.MySQL, Read: read})
				require.NoError(t, err)
				require.NoError(t, s.Close())
			}
		})
	}
}
