package rabbitmq_test

import (
	"net"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// publishOver is publishRaw with inFlight publications spread over several channels of one connection, one goroutine
// each, with combined writes, which is the fastest known way with so few in flight.
func (a *arena) publishOver(queue string, n, inFlight, channels int) time.Duration {
	a.Helper()
	conn, err := amqp.DialConfig(a.url, amqp.Config{
		Heartbeat: 10 * time.Second, Locale: "en_US",
		Dial: func(network, address string) (net.Conn, error) {
			conn, err := net.Dial(network, address)
			if err != nil {
				return nil, err
			}
			return newBundling(conn), nil
		},
	})
	require.NoError(a, err)
	defer conn.Close()
	chans := make([]*amqp.Channel, channels)
	for i := range chans {
		chans[i], err = conn.Channel()
		require.NoError(a, err)
		require.NoError(a, chans[i].Confirm(false))
	}
	return a.timed(func() {
		var all sync.WaitGroup
		for _, ch := range chans {
			all.Go(func() {
				window := make([]*amqp.DeferredConfirmation, 0, inFlight/channels)
				for i := range n / channels {
					if len(window) == cap(window) {
						if !window[0].Wait() {
							a.Error("not confirmed")
						}
						window = append(window[:0], window[1:]...)
					}
					c, err := ch.PublishWithDeferredConfirm("", queue, true, false, rawMessage(i))
					if err != nil {
						a.Error(err)
						return
					}
					window = append(window, c)
				}
				for _, c := range window {
					if !c.Wait() {
						a.Error("not confirmed")
					}
				}
			})
		}
		all.Wait()
	})
}

// batchesRaw publishes n messages from one caller that waits for a whole batch before the next, as a call of Publish
// does.
func (a *arena) batchesRaw(queue string, n, batch int) time.Duration {
	a.Helper()
	conn, ch := a.dial()
	defer conn.Close()
	require.NoError(a, ch.Confirm(false))
	return a.timed(func() {
		window := make([]*amqp.DeferredConfirmation, 0, batch)
		for i := range n {
			c, err := ch.PublishWithDeferredConfirm("", queue, true, false, rawMessage(i))
			require.NoError(a, err)
			if window = append(window, c); len(window) < batch && i < n-1 {
				continue
			}
			for _, c := range window {
				require.True(a, c.Wait(), "not confirmed")
			}
			window = window[:0]
		}
	})
}

// bundling combines what several goroutines have written in the meantime into one system call.
type bundling struct {
	net.Conn
	writes chan []byte
	closed chan struct{}
	once   sync.Once
}

func newBundling(conn net.Conn) *bundling {
	b := &bundling{Conn: conn, writes: make(chan []byte, 1024), closed: make(chan struct{})}
	go b.run()
	return b
}

func (b *bundling) Write(p []byte) (int, error) {
	select {
	case b.writes <- append([]byte(nil), p...):
		return len(p), nil
	case <-b.closed:
		return 0, net.ErrClosed
	}
}

func (b *bundling) run() {
	var buf []byte
	for {
		select {
		case p := <-b.writes:
			buf = append(buf[:0], p...)
		case <-b.closed:
			return
		}
		for more := true; more; {
			select {
			case p := <-b.writes:
				buf = append(buf, p...)
			default:
				more = false
			}
		}
		if _, err := b.Conn.Write(buf); err != nil {
			return
		}
	}
}

func (b *bundling) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.Conn.Close()
}
