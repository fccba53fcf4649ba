package rabbitmq

import (
	"net"
	"sync"
)

// coalesceLimit is how many bytes may wait to be written before writers wait themselves.
const coalesceLimit = 1 << 20

// coalescing is a connection whose writes are put together. amqp091-go makes one system call for every publication and
// every ack; with many goroutines at work most of that time can be saved, on the broker's side as well, which then
// reads, stores and confirms many messages at once.
type coalescing struct {
	net.Conn

	mu     sync.Mutex
	change sync.Cond // of anything below
	buf    []byte
	err    error // of a write that failed, or net.ErrClosed
	done   chan struct{}
}

func coalesce(conn net.Conn) *coalescing {
	c := &coalescing{Conn: conn, done: make(chan struct{})}
	c.change.L = &c.mu
	go c.run()
	return c
}

// Write takes p and returns before it is sent. An error is that of an earlier write.
func (c *coalescing) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.err == nil && len(c.buf) > coalesceLimit {
		c.change.Wait()
	}
	if c.err != nil {
		return 0, c.err
	}
	if len(c.buf) == 0 {
		c.change.Broadcast()
	}
	c.buf = append(c.buf, p...)
	return len(p), nil
}

func (c *coalescing) run() {
	defer close(c.done)
	var sending []byte
	for {
		c.mu.Lock()
		for c.err == nil && len(c.buf) == 0 {
			c.change.Wait()
		}
		if c.err != nil {
			c.mu.Unlock()
			return
		}
		sending, c.buf = c.buf, sending[:0]
		c.mu.Unlock()
		c.change.Broadcast()

		if _, err := c.Conn.Write(sending); err != nil {
			c.fail(err)
			_ = c.Conn.Close() // the reader finds out, and with it amqp091-go
			return
		}
		if cap(sending) > 2*coalesceLimit {
			sending = nil // one huge message is no reason to keep its memory
		}
	}
}

func (c *coalescing) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	c.change.Broadcast()
}

// Close ends the connection. What has not been sent is not sent.
func (c *coalescing) Close() error {
	c.fail(net.ErrClosed)
	err := c.Conn.Close()
	<-c.done
	return err
}
