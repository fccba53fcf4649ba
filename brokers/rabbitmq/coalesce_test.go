package rabbitmq

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCoalescing_KeepsEveryWriteWholeAndInOrder(t *testing.T) {
	const writers, each = 8, 500
	client, server := net.Pipe()
	c := coalesce(client, writeTimeout)
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := range each {
				frame := binary.BigEndian.AppendUint64(nil, uint64(w)<<32|uint64(i))
				if n, err := c.Write(frame); n != 8 || err != nil {
					t.Errorf("write: %d, %v", n, err)
				}
			}
		})
	}
	next := make([]uint64, writers)
	for range writers * each {
		var frame [8]byte
		_, err := io.ReadFull(server, frame[:])
		require.NoError(t, err)
		v := binary.BigEndian.Uint64(frame[:])
		require.Equal(t, next[v>>32], v&0xffffffff)
		next[v>>32]++
	}
	group.Wait()
	require.NoError(t, c.Close())
}

// A slow peer gets a large message: each attempt to send it used to end the connection, for all who use it.
func TestCoalescing_APeerThatReadsSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer server.Close()
		c := coalesce(client, writeTimeout)
		const size = 16 << 20
		_, err := c.Write(make([]byte, size))
		require.NoError(t, err)
		part := make([]byte, 32<<10)
		for range size / len(part) {
			time.Sleep(time.Second) // virtual
			synctest.Wait()
			_, err := io.ReadFull(server, part)
			require.NoError(t, err)
		}
		require.NoError(t, c.Close())
	})
}

// A peer that reads nothing lets the buffer fill up. A write still returns at once, because amqp091-go holds a lock
// during it; a publisher waits for room until its own deadline or that of the connection.
func TestCoalescing_APeerThatReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer server.Close()
		c := coalesce(client, writeTimeout)
		for range 3 { // the first is being sent
			n, err := c.Write(make([]byte, coalesceLimit))
			require.NoError(t, err)
			require.Equal(t, coalesceLimit, n)
			synctest.Wait()
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, c.room(ctx), context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(began))

		require.NoError(t, c.room(t.Context()), "the connection is abandoned")
		require.Equal(t, writeTimeout, time.Since(began))
		_, err := c.Write([]byte("x"))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, c.Close())
	})
}

func TestCoalescing_CloseReleasesPublishers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer server.Close()
		c := coalesce(client, writeTimeout)
		for range 3 {
			_, err := c.Write(make([]byte, coalesceLimit))
			require.NoError(t, err)
			synctest.Wait()
		}
		stuck := make(chan error, 1)
		go func() { stuck <- c.room(t.Context()) }()
		synctest.Wait()
		require.NoError(t, c.Close())
		require.NoError(t, <-stuck)
		_, err := c.Write([]byte("x"))
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

// A connection that must close by a deadline does so even though heartbeats arrive, for which amqp091-go sets other
// deadlines.
func TestCoalescing_HeartbeatsDoNotDelayClosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer server.Close()
		c := coalesce(client, writeTimeout)
		require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute))) // of a handshake
		require.NoError(t, c.SetDeadline(time.Time{}))
		began := time.Now()
		read := func() error { _, err := c.Read(make([]byte, 1)); return err }
		require.NoError(t, c.SetReadDeadline(began.Add(3*time.Second)))
		require.ErrorIs(t, read(), os.ErrDeadlineExceeded)
		require.Equal(t, 3*time.Second, time.Since(began))

		require.NoError(t, c.SetDeadline(began.Add(5*time.Second)))
		require.NoError(t, c.SetReadDeadline(began.Add(time.Hour)))
		require.ErrorIs(t, read(), os.ErrDeadlineExceeded)
		require.Equal(t, 5*time.Second, time.Since(began))
		require.NoError(t, c.Close())
	})
}

// A failed write ends the connection, so that its reader notices.
func TestCoalescing_AFailedWriteEndsTheConnection(t *testing.T) {
	client, server := net.Pipe()
	defer server.Close()
	c := coalesce(client, -time.Second)
	_, err := c.Write(bytes.Repeat([]byte("x"), 100))
	require.NoError(t, err, "the write is accepted and fails later")
	_, err = c.Read(make([]byte, 1))
	require.True(t, errors.Is(err, io.ErrClosedPipe) || errors.Is(err, io.EOF), err)
	_, err = c.Write([]byte("x"))
	require.Error(t, err)
	require.NoError(t, c.Close())
}
