package rabbitmq

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCoalescing_KeepsEveryWriteWholeAndInOrder(t *testing.T) {
	const writers, each = 8, 500
	client, server := net.Pipe()
	c := coalesce(client)
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

// A peer that reads nothing fills the buffer; then writers wait, until the connection ends.
func TestCoalescing_CloseReleasesWriters(t *testing.T) {
	client, server := net.Pipe()
	defer server.Close()
	c := coalesce(client)
	stuck := make(chan error, 1)
	go func() {
		for {
			if _, err := c.Write(make([]byte, 64<<10)); err != nil {
				stuck <- err
				return
			}
		}
	}()
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.buf) > coalesceLimit
	}, 5*time.Second, time.Millisecond)
	require.NoError(t, c.Close())
	require.ErrorIs(t, <-stuck, net.ErrClosed)
	_, err := c.Write([]byte("x"))
	require.ErrorIs(t, err, net.ErrClosed)
}

// A write that fails, by a deadline say, ends the connection, so that its reader finds out.
func TestCoalescing_AFailedWriteEndsTheConnection(t *testing.T) {
	client, server := net.Pipe()
	defer server.Close()
	c := coalesce(client)
	require.NoError(t, c.SetWriteDeadline(time.Now()))
	_, err := c.Write(bytes.Repeat([]byte("x"), 100))
	require.NoError(t, err, "it is taken and fails later")
	_, err = c.Read(make([]byte, 1))
	require.True(t, errors.Is(err, io.ErrClosedPipe) || errors.Is(err, io.EOF), err)
	_, err = c.Write([]byte("x"))
	require.Error(t, err)
	require.NoError(t, c.Close())
}
