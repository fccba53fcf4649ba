package sqlqueue_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/stretchr/testify/require"
)

// riverJob is a message as a job of River.
type riverJob struct {
	Payload []byte `json:"payload"`
}

// Kind implements river.JobArgs.
func (riverJob) Kind() string { return "bench" }

type riverWorker struct {
	river.WorkerDefaults[riverJob]
	left *sync.WaitGroup
}

// Work implements river.Worker.
func (w *riverWorker) Work(context.Context, *river.Job[riverJob]) error {
	w.left.Done()
	return nil
}

// consumeRiver runs n jobs with River (github.com/riverqueue/river, MPL-2.0), whose queue is also a table in
// PostgreSQL. It has more workers than we do, and the shortest possible pause between fetches.
func consumeRiver(b *testing.B, url string, n int) time.Duration {
	b.Helper()
	ctx := b.Context()
	pool, err := pgxpool.New(ctx, url)
	require.NoError(b, err)
	defer pool.Close()
	driver := riverpgxv5.New(pool)
	quiet := slog.New(slog.DiscardHandler)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: quiet})
	require.NoError(b, err)
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	require.NoError(b, err)

	var left sync.WaitGroup
	left.Add(n)
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{left: &left})
	client, err := river.NewClient(driver, &river.Config{
		FetchCooldown: time.Millisecond,
		Logger:        quiet,
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1000}},
		Workers:       workers,
	})
	require.NoError(b, err)
	for range n / 1000 {
		jobs := make([]river.InsertManyParams, 1000)
		for i := range jobs {
			jobs[i].Args = riverJob{Payload: payload}
		}
		_, err := client.InsertManyFast(ctx, jobs)
		require.NoError(b, err)
	}
	_, err = pool.Exec(ctx, "VACUUM ANALYZE river_job")
	require.NoError(b, err)

	began := time.Now()
	require.NoError(b, client.Start(ctx))
	left.Wait()
	took := time.Since(began)
	require.NoError(b, client.Stop(ctx))
	return took
}
