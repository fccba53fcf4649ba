package sqlstore

import (
	"context"
	"net/url"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// schemes are the URL schemes of this package.
var schemes = []string{"sqlite", "sqlite3", "postgres", "postgresql", "mysql", "mariadb"}

func init() {
	for _, scheme := range schemes {
		driver.Register(scheme, opener{})
	}
}

// opener is their driver.Driver.
type opener struct{}

var _ driver.Driver = opener{}

// OpenStore opens the store that the URL names.
func (opener) OpenStore(ctx context.Context, u *url.URL) (dlq.Store, error) {
	s, err := openURL(ctx, u)
	if err != nil {
		return nil, err // not s: a nil *Store in an interface is not nil
	}
	return s, nil
}
