package nats_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/nats"
)

// A server that accepts connections and says nothing once used up the whole time for opening the broker, so that the
// others of its cluster were not tried.
func TestOpen_TriesTheServersAfterASilentOne(t *testing.T) {
	t.Parallel()
	listen := func() (address string, dialed chan time.Time) {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		dialed = make(chan time.Time, 10)
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				dialed <- time.Now()
				defer conn.Close()
			}
		}()
		return l.Addr().String(), dialed
	}
	one, first := listen()
	two, second := listen()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := brokers.Open(ctx, "nats://"+one+","+two)
	require.Error(t, err)
	deadline, _ := ctx.Deadline()
	for _, dialed := range []chan time.Time{first, second} {
		select {
		case at := <-dialed:
			require.True(t, at.Before(deadline))
		case <-time.After(time.Second):
			require.Fail(t, "a server was not tried")
		}
	}
}
