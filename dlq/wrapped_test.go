package dlq_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqmetrics"
	"github.com/redrive-go/redrive/dlq/dlqtest"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/internal/storetest"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/sqlstore"
)

// whole is a wrapped store together with the runs that are found in it, as a Runner finds them.
type whole struct {
	dlq.Store
	runs
}

type runs = redrive.Store

func (w whole) Unwrap() dlq.Store { return w.Store }

// A store passes the whole suite inside everything that a service puts around it, too: metrics, and the store that Open
// returns for a database that does not answer. An ability that a wrapper hides fails here.
func TestWrappers_Conformance(t *testing.T) {
	t.Parallel()
	dlqtest.Run(t, func(t *testing.T) dlqtest.Database {
		t.Helper()
		url := "sqlite:" + storetest.File(t) + "?synchronous=normal"
		return func(t *testing.T) dlqtest.Store {
			t.Helper()
			late := dlq.NewLateStore(func(ctx context.Context) (dlq.Store, error) { return sqlstore.Open(ctx, url) })
			metrics, err := dlqmetrics.New(dlqmetrics.Config{})
			require.NoError(t, err)
			letters, err := dlq.NewLetters(late, dlq.WithObserver(metrics), dlq.WithoutSpool())
			require.NoError(t, err)
			store := letters.Store()
			_, err = store.Count(t.Context(), dlq.Filter{}, 1) // opens it
			require.NoError(t, err)
			found, ok := driver.As[redrive.Store](store)
			require.True(t, ok)
			return whole{store, found}
		}
	})
}
