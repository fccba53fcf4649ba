package sqlstore_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/integration/services"
)

// A server may make all transactions SERIALIZABLE. Three processes store the same dead letters, and count them: each is
// one entry, and no call fails.
func TestSerializable_StoresEachLetterOnce(t *testing.T) {
	t.Parallel()
	level := services.MySQLConfig{Args: []string{"--transaction-isolation=SERIALIZABLE"}}
	for name, start := range map[string]func(t *testing.T) services.DatabaseServer{
		"PostgreSQL": func(t *testing.T) services.DatabaseServer {
			t.Helper()
			return services.Postgres(t, services.PostgresConfig{
				Settings: map[string]string{"default_transaction_isolation": "serializable"},
			})
		},
		"MariaDB": func(t *testing.T) services.DatabaseServer { t.Helper(); return services.MariaDB(t, level) },
		"MySQL":   func(t *testing.T) services.DatabaseServer { t.Helper(); return services.MySQL(t, level) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const processes, consumers, each = 3, 4, 50
			url := start(t).Database(t)
			faults := make(chan error, 2*processes*consumers*each)
			var storing sync.WaitGroup
			for range processes {
				s := openStore(t, url)
				defer s.Close()
				for c := range consumers {
					storing.Go(func() {
						for i := range each {
							_, err := s.Put(t.Context(), letter(i*consumers+c, time.Now()))
							faults <- err
							if i%10 == 0 {
								_, err = s.Stats(t.Context(), dlq.StatsQuery{})
								faults <- err
							}
						}
					})
				}
			}
			storing.Wait()
			close(faults)
			for err := range faults {
				require.NoError(t, err)
			}
			s := openStore(t, url)
			defer s.Close()
			n, err := s.Count(t.Context(), dlq.Filter{}, 0)
			require.NoError(t, err)
			require.EqualValues(t, consumers*each, n)
			requireCounted(t, s)
		})
	}
}
