package redrive_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/integration/services"
)

// BenchmarkRedrive compares runs with raw amqp091-go, which publishes the same messages with confirms and 1,000 in
// flight, and with single redrives one after the other; PostgreSQL syncs every commit. They run alternately. "run"
// lasts until the broker has confirmed everything and the store has recorded it, like a single redrive; "closing" also
// closes every entry. Targets: run/raw at least 0.6, run/single at least 15.
func BenchmarkRedrive(b *testing.B) {
	store := services.Postgres(b, services.PostgresConfig{
		Durable:  true,
		Settings: map[string]string{"max_wal_size": "4GB"},
	}).Database(b)
	url := services.SharedRabbitMQ(b).VHost(b)
	slog.SetDefault(slog.New(slog.DiscardHandler))
	l, broker := openLetters(b, store), openBroker(b, url)
	b.Cleanup(func() {
		require.NoError(b, broker.Close())
		require.NoError(b, l.Close())
	})
	ctx, stop := context.WithCancel(b.Context())
	queue, err := broker.Subscriber().Subscribe(ctx, topic) // declares the queue
	require.NoError(b, err)
	stop()
	for range queue {
	}
	const n, singles = 20_000, 300
	m := l.Manager(broker)
	runner, err := redrive.NewRunner(l.Manager(broker), redrive.Config{})
	require.NoError(b, err)
	var raw, single, run, closing []float64 // a second
	for filled := 0; b.Loop(); {
		purgeQueues(b, url)
		raw = append(raw, n/publishRaw(b, url, n).Seconds())

		fill(b, l, filled, filled+singles)
		filled += singles
		single = append(single, singles/redriveSingles(b, m, singles).Seconds())

		for _, closes := range []bool{false, true} {
			purgeQueues(b, url)
			fill(b, l, filled, filled+n)
			filled += n
			took := redriveRun(b, runner, n, closes)
			if closes {
				closing = append(closing, n/took.Seconds())
			} else {
				run = append(run, n/took.Seconds())
			}
		}
	}
	b.ReportMetric(median(run), "run/s")
	b.ReportMetric(median(closing), "closing/s")
	b.ReportMetric(median(raw), "raw/s")
	b.ReportMetric(median(single), "single/s")
	b.ReportMetric(median(ratios(run, raw)), "run/raw")
	b.ReportMetric(median(ratios(closing, raw)), "closing/raw")
	b.ReportMetric(median(ratios(run, single)), "run/single")
	b.ReportMetric(median(ratios(closing, single)), "closing/single")
}

func redriveSingles(b *testing.B, m *dlq.Manager, n int) time.Duration {
	b.Helper()
	listing, err := m.List(b.Context(), dlq.Filter{Statuses: []dlq.Status{dlq.Pending}}, dlq.Page{Limit: n})
	require.NoError(b, err)
	require.Len(b, listing.Entries, n)
	start := time.Now()
	for i := range listing.Entries {
		_, err := m.Redrive(b.Context(), listing.Entries[i].ID, dlq.By{Actor: "bench"})
		require.NoError(b, err)
	}
	return time.Since(start)
}

// redriveRun redrives all n PENDING entries.
func redriveRun(b *testing.B, m *redrive.Runner, n int64, closes bool) time.Duration {
	b.Helper()
	r, err := m.StartRun(b.Context(), redrive.Spec{CloseOnPublish: closes, MaxOut: -1}, dlq.By{Actor: "bench"})
	require.NoError(b, err)
	require.Equal(b, n, r.Counts.Waiting)
	start := time.Now()
	if closes {
		r, err = m.Drive(b.Context(), r.ID)
		require.NoError(b, err)
		require.Equal(b, redrive.Completed, r.State, r.Cause)
		return time.Since(start)
	}
	ctx, stop := context.WithCancel(b.Context())
	driven := make(chan error, 1)
	go func() {
		_, err := m.Drive(ctx, r.ID)
		driven <- err
	}()
	for run, err := range m.WatchRun(b.Context(), r.ID, 10*time.Millisecond) {
		require.NoError(b, err)
		if run.Counts.Out == n {
			break
		}
	}
	took := time.Since(start)
	stop()
	require.ErrorIs(b, <-driven, context.Canceled)
	_, err = m.CancelRun(b.Context(), r.ID, dlq.By{Actor: "bench"})
	require.NoError(b, err)
	return took
}

func ratios(of, to []float64) []float64 {
	all := make([]float64, len(of))
	for i := range of {
		all[i] = of[i] / to[i]
	}
	return all
}

func median(all []float64) float64 { return slices.Sorted(slices.Values(all))[len(all)/2] }

func dial(b *testing.B, url string) (*amqp.Connection, *amqp.Channel) {
	b.Helper()
	conn, err := amqp.Dial(url)
	require.NoError(b, err)
	ch, err := conn.Channel()
	require.NoError(b, err)
	return conn, ch
}

// workQueue returns the queue that receives redriven messages.
func workQueue(b *testing.B, url string) string {
	b.Helper()
	queues, err := services.SharedRabbitMQ(b).Management().Queues(b.Context(), vhost(url))
	require.NoError(b, err)
	for _, q := range queues {
		if strings.Contains(q.Name, topic) && !strings.Contains(q.Name, "_retry") && !strings.Contains(q.Name, "_dlq") {
			return q.Name
		}
	}
	b.Fatalf("no queue for %s among %v", topic, queues)
	return ""
}

func vhost(url string) string { return url[strings.LastIndex(url, "/")+1:] }

func purgeQueues(b *testing.B, url string) {
	b.Helper()
	conn, ch := dial(b, url)
	defer conn.Close()
	_, err := ch.QueuePurge(workQueue(b, url), false)
	require.NoError(b, err)
}

func publishRaw(b *testing.B, url string, n int) time.Duration {
	b.Helper()
	queue := workQueue(b, url)
	conn, ch := dial(b, url)
	defer conn.Close()
	require.NoError(b, ch.Confirm(false))
	messages := make([]amqp.Publishing, n)
	for i := range messages {
		e := dlq.NewEntry(dead(i))
		e.ID, e.RedriveCount, e.Run = int64(i+1), 1, "01a1ffa9-f262-7b88-b49b-78a89dfe82d1"
		m := dlq.RedriveMessage(e)
		messages[i] = amqp.Publishing{
			DeliveryMode: amqp.Persistent, MessageId: m.UUID, Body: m.Payload,
			Headers: amqp.Table{},
		}
		for key, value := range m.Metadata {
			messages[i].Headers[key] = value
		}
	}
	start := time.Now()
	window := make(chan *amqp.DeferredConfirmation, 1000)
	var confirmed sync.WaitGroup
	confirmed.Go(func() {
		for c := range window {
			if !c.Wait() {
				b.Error("not confirmed")
			}
		}
	})
	for i := range messages {
		c, err := ch.PublishWithDeferredConfirm("", queue, true, false, messages[i])
		require.NoError(b, err)
		window <- c
	}
	close(window)
	confirmed.Wait()
	return time.Since(start)
}
