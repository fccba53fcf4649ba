package subscriptions_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/natsserver"
	"github.com/redrive-go/redrive/integration/services"
)

// If a server freezes or refuses connections while everything is open, no query outlives its context: depths, readers
// and pings fail in time and recover with the server, and Close returns.
func TestQueries_ToFrozenAndRefusingServers(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]func(t *testing.T) string{
		"RabbitMQ":   func(t *testing.T) string { t.Helper(); return services.SharedRabbitMQ(t).VHost(t) },
		"NATS":       func(t *testing.T) string { t.Helper(); return natsserver.Start(t).URL() },
		"PostgreSQL": func(t *testing.T) string { t.Helper(); return services.SharedPostgres(t).Database(t) },
		"MariaDB":    func(t *testing.T) string { t.Helper(); return services.SharedMariaDB(t).Database(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := server(t)
			proxy := services.NewProxy(t, url)
			b, err := brokers.Open(t.Context(), proxy.URL(t, url))
			require.NoError(t, err)
			_, err = b.Subscriber().Subscribe(t.Context(), "orders")
			require.NoError(t, err)
			questions := map[string]func(ctx context.Context) error{"ping": b.Ping}
			if d, ok := b.(brokers.DepthReporter); ok {
				questions["depths"] = func(ctx context.Context) error { _, err := d.Depths(ctx); return err }
			}
			origin := envelope.Origin{Broker: b.Capabilities().Scheme, Topic: "orders", Consumer: brokers.DefaultGroup}
			if r, ok := b.(brokers.ReaderCounter); ok && name != "PostgreSQL" && name != "MariaDB" { // these do not report it
				questions["readers"] = func(ctx context.Context) error { _, err := r.Readers(ctx, origin); return err }
			}
			answer := func() bool {
				for _, ask := range questions {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					err := ask(ctx)
					cancel()
					if err != nil {
						return false
					}
				}
				return true
			}
			await.True(t, answer)
			for fault, do := range map[string]func() error{"frozen": proxy.Freeze, "refusing": proxy.Cut} {
				require.NoError(t, do())
				for what, ask := range questions {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					began := time.Now()
					err := ask(ctx)
					cancel()
					require.Error(t, err, "%s, %s", fault, what)
					require.Less(t, time.Since(began), await.Patience, "%s, %s", fault, what)
				}
				require.NoError(t, proxy.Heal())
				await.True(t, answer, fault)
			}
			require.NoError(t, proxy.Freeze())
			began := time.Now()
			_ = b.Close() // it may report that the server does not answer
			require.Less(t, time.Since(began), await.Patience)
		})
	}
}
