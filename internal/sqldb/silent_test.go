package sqldb_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/internal/sqldb"
)

// silent is the driver of a server that accepts connections and says nothing.
type silent struct{}

func init() { sql.Register("silent", silent{}) }

func (silent) Open(string) (driver.Conn, error) { panic("it has connectors") }

func (silent) OpenConnector(string) (driver.Connector, error) { return silent{}, nil }

func (silent) Driver() driver.Driver { return silent{} }

func (silent) Connect(ctx context.Context) (driver.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A program whose database hangs would neither start nor end, without a line in its log.
func TestOpen_SilentServer(t *testing.T) {
	t.Parallel()
	for raw, idle := range map[string]time.Duration{"postgres://h/d": time.Minute, "mysql://h/d": 0} {
		synctest.Test(t, func(t *testing.T) {
			source, err := sqldb.ReadURL(parse(t, raw), url.Values{})
			require.NoError(t, err)
			db, err := source.Open(sqldb.Pool{Driver: "silent", Max: 1, IdleTx: idle})
			require.NoError(t, err)
			defer func() { require.NoError(t, db.Close()) }()
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			err = db.PingContext(ctx)
			require.True(t, sqldb.Unreachable(err), "%v", err)
			require.Equal(t, 30*time.Second, time.Since(began))
		})
	}
}
