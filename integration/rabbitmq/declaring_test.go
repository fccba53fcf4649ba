package rabbitmq_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// cutter is a TCP proxy that ends the connection for declarations instead of passing on one of its requests.
type cutter struct {
	addr string
	left atomic.Int32 // requests until the cut; at 0 none is cut
}

func newCutter(t *testing.T, upstream string) *cutter {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	c := &cutter{addr: listener.Addr().String()}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", upstream)
			if err != nil {
				_ = client.Close()
				continue
			}
			go pass(server, client, c.cuts())
			go pass(client, server, func([]byte) bool { return false })
		}
	}()
	return c
}

// cuts returns a function that reports whether a connection ends before it passes on these bytes.
func (c *cutter) cuts() func([]byte) bool {
	third := false
	return func(sent []byte) bool {
		third = third || bytes.Contains(sent, []byte("(declare)"))                                    // the name of the connection, which it begins with
		for _, method := range []string{"\x00\x28\x00\x0a", "\x00\x32\x00\x0a", "\x00\x32\x00\x14"} { // declare, bind
			if third && bytes.Contains(sent, []byte(method)) && c.left.Load() > 0 && c.left.Add(-1) == 0 {
				return true
			}
		}
		return false
	}
}

func pass(to, from net.Conn, cuts func([]byte) bool) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil || cuts(buffer[:n]) {
			return
		}
		if _, err := io.Copy(to, bytes.NewReader(buffer[:n])); err != nil {
			return
		}
	}
}

// The connection for declarations is lost at any step while a publication declares what an operator has deleted. The
// publication used to fail; that of a retry, twice in a row, ran its handler again.
func TestOperator_ALostConnectionWhileAPublicationDeclares(t *testing.T) {
	t.Parallel()
	const delay = 100 * time.Millisecond
	origin := envelope.Origin{Topic: "orders", Consumer: "orders"}
	for name, c := range map[string]struct {
		remove  func(p *plain) error
		publish func(ctx context.Context, b *rabbitmq.Broker) error
	}{
		"retry": {deletes("orders_retry.100"), func(ctx context.Context, b *rabbitmq.Broker) error {
			return b.Reschedule(ctx, origin, newMessage("x"), delay)
		}},
		"dead letter": {deletes("orders_dlq"), func(ctx context.Context, b *rabbitmq.Broker) error {
			return b.DeadLetter(ctx, &envelope.DeadLetter{
				Message: newMessage("x"), Origin: origin, Reason: envelope.ReasonExhausted,
			})
		}},
		"first publication": {
			func(p *plain) error { return p.ch.ExchangeDelete("redrive", false, false) },
			func(_ context.Context, b *rabbitmq.Broker) error {
				return b.Publisher().Publish("orders", newMessage("x"))
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct := services.SharedRabbitMQ(t).VHost(t)
			address, err := url.Parse(direct)
			require.NoError(t, err)
			proxy := newCutter(t, address.Host)
			address.Host = proxy.addr
			b := openBroker(t, address.String(), delays(delay))
			serve(t, b, "orders", middleware.Laravel(1), succeeds)
			p := dialPlain(t, direct)
			cuts := int32(0)
			for ; proxy.left.Load() == 0; cuts++ { // until there is no such request
				require.NoError(t, c.remove(p))
				proxy.left.Store(cuts + 1)
				require.NoError(t, c.publish(t.Context(), b), "request %d", cuts+1)
			}
			require.Greater(t, cuts, int32(1))
		})
	}
}
