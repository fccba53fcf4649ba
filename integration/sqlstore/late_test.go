package sqlstore_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// A service that starts while the database is down uses its spool; if an empty database is available later, its tables
// are created and all letters are imported.
func TestOpen_WhileTheDatabaseIsDown(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		proxy := services.NewProxy(t, url)
		require.NoError(t, proxy.Cut())
		through := proxy.URL(t, url)
		_, err := sqlstore.Open(t.Context(), through)
		require.ErrorIs(t, err, driver.ErrUnavailable)
		_, err = dlq.Open(t.Context(), through, dlq.WithSpool(t.TempDir()), dlq.WithStoreRequired())
		require.ErrorIs(t, err, driver.ErrUnavailable)

		letters, err := dlq.Open(t.Context(), through, dlq.WithSpool(t.TempDir()),
			dlq.WithLogger(slog.New(slog.DiscardHandler)),
			dlq.WithImportBackoff(5*time.Millisecond, 50*time.Millisecond))
		require.NoError(t, err)
		defer letters.Close()
		require.True(t, letters.Stats().StoreDown)
		for range 20 {
			m := message.NewMessage("", []byte(`{"n":1}`))
			m.UUID = watermill.NewUUID()
			require.NoError(t, letters.DeadLetter(t.Context(), &envelope.DeadLetter{
				Message: m, Origin: envelope.Origin{Broker: "mem", Topic: "orders", Consumer: "billing"}, At: time.Now(),
			}))
		}
		require.NoError(t, proxy.Heal())
		await.True(t, func() bool { return letters.Stats().Imported == 20 && !letters.Stats().StoreDown }, "all are imported")
		n, err := letters.Store().Count(t.Context(), dlq.Filter{}, 0)
		require.NoError(t, err)
		require.Equal(t, int64(20), n)
	})
}
