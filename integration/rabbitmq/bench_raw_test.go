package rabbitmq_test

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// The raw contenders use only amqp091-go and work like a correct program: messages are persistent, mandatory and
// confirmed before the ack, with as many in flight as is useful.

const (
	rawInFlight = 1000
	rawPrefetch = 250
)

// publishRaw publishes n messages with up to inFlight in flight and returns when all are confirmed.
func (a *arena) publishRaw(queue string, n, inFlight int) time.Duration {
	a.Helper()
	conn, ch := a.dial()
	defer conn.Close()
	require.NoError(a, ch.Confirm(false))
	returned := ch.NotifyReturn(make(chan amqp.Return, inFlight))
	return a.timed(func() {
		window := make(chan *amqp.DeferredConfirmation, inFlight)
		var confirmed sync.WaitGroup
		confirmed.Go(func() {
			for c := range window {
				if !c.Wait() {
					a.Error("not confirmed")
				}
			}
		})
		for i := range n {
			c, err := ch.PublishWithDeferredConfirm("", queue, true, false, rawMessage(i))
			require.NoError(a, err)
			window <- c
		}
		close(window)
		confirmed.Wait()
		require.Empty(a, returned)
	})
}

func rawMessage(i int) amqp.Publishing {
	m := numbered(i)
	return amqp.Publishing{
		DeliveryMode: amqp.Persistent, MessageId: m.UUID, CorrelationId: "bench", Body: m.Payload,
		Headers: amqp.Table{"correlation_id": "bench"},
	}
}

// consumeRaw consumes n messages with that many workers, which ack them one by one or several at once.
func (a *arena) consumeRaw(queue string, n, workers int, multiple bool, handle func(*amqp.Delivery)) time.Duration {
	a.Helper()
	conn, ch := a.dial()
	defer conn.Close()
	require.NoError(a, ch.Qos(rawPrefetch, 0, false))
	return a.timed(func() {
		deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
		require.NoError(a, err)
		spread(workers, n, func(i int) {
			d := <-deliveries
			handle(&d)
			switch {
			case !multiple:
				err = d.Ack(false)
			case i%(rawPrefetch/5) == 0 || i == n-1:
				err = d.Ack(true)
			}
			if err != nil {
				a.Error(err)
			}
		})
	})
}

// rawSubscriber is a hand-written subscriber for a router, as an upper bound for subscribers.
type rawSubscriber struct{ a *arena }

func (s rawSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	conn, ch := s.a.dial()
	if err := ch.Qos(rawPrefetch, 0, false); err != nil {
		return nil, err
	}
	deliveries, err := ch.ConsumeWithContext(ctx, topic, "", false, false, false, false, nil)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		defer conn.Close()
		for {
			select {
			case d := <-deliveries:
				m := message.NewMessage(d.MessageId, d.Body)
				m.Metadata["correlation_id"], _ = d.Headers["correlation_id"].(string)
				m.SetContext(ctx)
				out <- m
				go func() {
					<-m.Acked()
					_ = d.Ack(false) // the connection may be closed after the last
				}()
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

func (rawSubscriber) Close() error { return nil }

// retryRaw lets every message fail once: it is published to the delay queue with 250 in flight, and acked when that is
// confirmed. The second time it is acked.
func (a *arena) retryRaw(queue, retry string, n int) time.Duration {
	a.Helper()
	conn, ch := a.dial()
	defer conn.Close()
	pubConn, pub := a.dial()
	defer pubConn.Close()
	require.NoError(a, pub.Confirm(false))
	returned := pub.NotifyReturn(make(chan amqp.Return, rawPrefetch))
	require.NoError(a, ch.Qos(rawPrefetch, 0, false))

	type flight struct {
		confirm *amqp.DeferredConfirmation
		tag     uint64
	}
	flights := make(chan flight, rawPrefetch)
	var settled sync.WaitGroup
	settled.Go(func() {
		for f := range flights {
			if !f.confirm.Wait() {
				a.Error("not confirmed")
			}
			if err := ch.Ack(f.tag, false); err != nil {
				a.Error(err)
			}
		}
	})
	return a.timed(func() {
		deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
		require.NoError(a, err)
		for left := n; left > 0; {
			d := <-deliveries
			if _, again := d.Headers["x-retry-count"]; again {
				require.NoError(a, d.Ack(false))
				left--
				continue
			}
			headers := amqp.Table{"x-retry-count": "1"}
			maps.Copy(headers, d.Headers)
			c, err := pub.PublishWithDeferredConfirm("", retry, true, false, amqp.Publishing{
				DeliveryMode: amqp.Persistent, MessageId: d.MessageId, CorrelationId: d.CorrelationId, Body: d.Body,
				Headers: headers,
			})
			require.NoError(a, err)
			flights <- flight{c, d.DeliveryTag}
		}
		close(flights)
		settled.Wait()
		require.Empty(a, returned)
	})
}
