package sqlstore

import (
	"context"
	"net/url"

	"github.com/redrive-go/redrive/dlq"
)

// drivers are the URL schemes of this package.
var drivers = map[string]driverFunc{
	"sqlite":     openSQLite,
	"sqlite3":    openSQLite,
	"postgres":   openPostgres,
	"postgresql": openPostgres,
	"mysql":      openMySQL,
	"mariadb":    openMySQL,
}

func init() {
	for scheme, open := range drivers {
		dlq.Register(scheme, open)
	}
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
