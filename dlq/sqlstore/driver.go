package sqlstore

import (
	"context"
	"net/url"

	"github.com/redrive-go/redrive/dlq"
)

func init() {
	sqliteDriver := driverFunc(openSQLite)
	dlq.Register("sqlite", sqliteDriver)
	dlq.Register("sqlite3", sqliteDriver)
}

// driverFunc makes a dlq.Driver of a function that opens a Store.
type driverFunc func(ctx context.Context, u *url.URL) (*Store, error)

// OpenStore calls f.
func (f driverFunc) OpenStore(ctx context.Context, u *url.URL) (dlq.Store, error) {
	s, err := f(ctx, u)
	if err != nil {
		return nil, err // not s: a nil *Store in an interface is not nil
	}
	return s, nil
}
