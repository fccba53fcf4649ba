package services_test

import (
	"bufio"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// echo is an echo server.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn) }()
		}
	}()
	return l.Addr().String()
}

// ask sends a line and returns how long the response took.
func ask(t *testing.T, conn net.Conn, patience time.Duration) (time.Duration, error) {
	t.Helper()
	start := time.Now()
	require.NoError(t, conn.SetDeadline(start.Add(patience)))
	if _, err := conn.Write([]byte("hello\n")); err != nil {
		return 0, err
	}
	_, err := bufio.NewReader(conn).ReadString('\n')
	return time.Since(start), err
}

func TestProxy(t *testing.T) {
	p := services.NewProxy(t, "amqp://guest:guest@"+echo(t)+"/vhost")
	require.Equal(t, "amqp://guest:guest@"+p.Addr+"/vhost", p.URL(t, "amqp://guest:guest@127.0.0.1:1/vhost"))
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", p.Addr)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}

	conn := dial()
	_, err := ask(t, conn, await.Patience)
	require.NoError(t, err)

	require.NoError(t, p.Cut())
	_, err = ask(t, conn, await.Patience)
	require.Error(t, err)
	_, err = net.Dial("tcp", p.Addr)
	require.Error(t, err)

	require.NoError(t, p.Heal())
	conn = dial()
	require.NoError(t, p.Delay(300*time.Millisecond))
	took, err := ask(t, conn, await.Patience)
	require.NoError(t, err)
	require.GreaterOrEqual(t, took, 300*time.Millisecond)

	require.NoError(t, p.Heal())
	require.NoError(t, p.Freeze())
	_, err = ask(t, dial(), 200*time.Millisecond)
	var timeout net.Error
	require.ErrorAs(t, err, &timeout)
	require.True(t, timeout.Timeout(), "frozen, not closed")

	require.NoError(t, p.Flap())
	_, err = ask(t, dial(), await.Patience)
	require.NoError(t, err)
}

// Heal waits for a port that is still held for a moment, for example by a child between fork and exec.
func TestProxy_HealWaitsForItsPort(t *testing.T) {
	p := services.NewProxy(t, echo(t))
	require.NoError(t, p.Cut())
	held, err := net.Listen("tcp", p.Addr)
	require.NoError(t, err)
	time.AfterFunc(100*time.Millisecond, func() { _ = held.Close() })
	require.NoError(t, p.Heal())
	conn, err := net.Dial("tcp", p.Addr)
	require.NoError(t, err)
	defer conn.Close()
	_, err = ask(t, conn, await.Patience)
	require.NoError(t, err)
}
