package redrive_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/integration/services"
)

// BenchmarkRedrive compares a run with raw amqp091-go that publishes the same messages, confirmed, with 1,000 in flight, and with one
// redrive after the other. The three take turns. Targets: run/raw at least 0.6, run/single at least 15.
func BenchmarkRedrive(b *testing.B) {
	store, url := services.SharedPostgres(b).Database(b), services.SharedRabbitMQ(b).VHost(b)
	slog.SetDefault(slog.New(slog.DiscardHandler))
	l, broker := openLetters(b, store), openBroker(b, url)
	b.Cleanup(func() {
		require.NoError(b, broker.Close())
		require.NoError(b, l.Close())
	})
	ctx, stop := context.WithCancel(b.Context())
	queue, err := broker.Subscriber().Subscribe(ctx, topic) // makes the queue
	require.NoError(b, err)
	stop()
	for range queue {
	}
	const n, singles = 20_000, 300
	m := l.Manager(broker)
	var run, raw, single time.Duration
	rounds := 0
	for b.Loop() {
		rounds++
		fill(b, l, (n+singles)*(rounds-1), (n+singles)*rounds)
		purgeQueues(b, url)
		raw += publishRaw(b, url, n)
		purgeQueues(b, url)

		listing, err := m.List(b.Context(), dlq.Filter{Statuses: []dlq.Status{dlq.Pending}}, dlq.Page{Limit: singles})
		require.NoError(b, err)
		start := time.Now()
		for i := range listing.Entries {
			_, err := m.Redrive(b.Context(), listing.Entries[i].ID, dlq.By{Actor: "bench"})
			require.NoError(b, err)
		}
		single += time.Since(start)

		r, err := m.StartRun(b.Context(), dlq.RunSpec{CloseOnPublish: true}, dlq.By{Actor: "bench"})
		require.NoError(b, err)
		require.Equal(b, int64(n), r.Counts.Waiting)
		start = time.Now()
		r, err = m.Drive(b.Context(), r.ID)
		require.NoError(b, err)
		run += time.Since(start)
		require.Equal(b, dlq.RunCompleted, r.State, r.Cause)
	}
	perSecond := func(d time.Duration, n int) float64 { return float64(n*rounds) / d.Seconds() }
	b.ReportMetric(perSecond(run, n), "run/s")
	b.ReportMetric(perSecond(raw, n), "raw/s")
	b.ReportMetric(perSecond(single, singles), "single/s")
	b.ReportMetric(perSecond(run, n)/perSecond(raw, n), "run/raw")
	b.ReportMetric(perSecond(run, n)/perSecond(single, singles), "run/single")
}

func dial(b *testing.B, url string) (*amqp.Connection, *amqp.Channel) {
	b.Helper()
	conn, err := amqp.Dial(url)
	require.NoError(b, err)
	ch, err := conn.Channel()
	require.NoError(b, err)
	return conn, ch
}

// workQueue is the queue that a redriven message goes to.
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
	for i := range n {
		d := dead(i)
		c, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{
			DeliveryMode: amqp.Persistent, MessageId: d.Message.UUID, Body: d.Message.Payload, Headers: amqp.Table{"x-message-id": d.Message.UUID},
		})
		require.NoError(b, err)
		window <- c
	}
	close(window)
	confirmed.Wait()
	return time.Since(start)
}
