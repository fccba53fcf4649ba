package rabbitmq

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"
)

// coalesceLimit is how many bytes may wait to be written before publishers wait for room.
const coalesceLimit = 1 << 20

// writeTimeout bounds one write to the broker. RabbitMQ stops reading from publishing connections while it is short of
// memory or disk; a connection that has accepted nothing for this long is given up, and its publications fail or are
// repeated on the next one. A write is small, because a slow connection that accepts a large message is not given up.
const (
	writeTimeout = 10 * time.Second
	writeSize    = 64 << 10
)

// coalescing is a connection that combines writes. amqp091-go makes one system call for every publication and every
// ack; with many goroutines at work most of that time can be saved, also on the broker, which then reads, stores and
// confirms many messages at once.
//
// Write never blocks: amqp091-go holds a lock meanwhile, for which heartbeats, acks and Close would wait without a
// context. Publishers call room first.
type coalescing struct {
	net.Conn
	timeout time.Duration // of one write

	mu      sync.Mutex
	change  sync.Cond     // signalled when buf is no longer empty, or err is set
	drained chan struct{} // closed when buf has been taken to be sent, or err is set
	buf     []byte
	err     error // of a write that failed, or net.ErrClosed
	done    chan struct{}

	deadlines sync.Mutex
	last      time.Time // the last value of SetDeadline
}

func coalesce(conn net.Conn, timeout time.Duration) *coalescing {
	c := &coalescing{Conn: conn, timeout: timeout, drained: make(chan struct{}), done: make(chan struct{})}
	c.change.L = &c.mu
	go c.run()
	return c
}

// room waits until there is room in the buffer, or ctx ends. It returns nil if the connection has failed: the next
// Write reports that.
func (c *coalescing) room(ctx context.Context) error {
	for {
		c.mu.Lock()
		free := c.err != nil || len(c.buf) <= coalesceLimit
		drained := c.drained
		c.mu.Unlock()
		if free {
			return nil
		}
		select {
		case <-drained:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// SetDeadline implements net.Conn.
func (c *coalescing) SetDeadline(t time.Time) error {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	c.last = t
	return c.Conn.SetDeadline(t)
}

// SetReadDeadline implements net.Conn. It never extends a deadline from SetDeadline: amqp091-go sets one to close a
// connection, and then another one, half a minute from now, with every frame it reads. A broker that is short of memory
// sends heartbeats but does not read the request to close.
func (c *coalescing) SetReadDeadline(t time.Time) error {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	if !c.last.IsZero() && (t.IsZero() || t.After(c.last)) {
		t = c.last
	}
	return c.Conn.SetReadDeadline(t)
}

// Write buffers p and returns before it is sent. An error is that of an earlier write.
func (c *coalescing) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	if len(c.buf) == 0 {
		c.change.Signal()
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
		full := len(c.buf) > coalesceLimit
		sending, c.buf = c.buf, sending[:0]
		if full {
			close(c.drained)
			c.drained = make(chan struct{})
		}
		c.mu.Unlock()

		for part := range slices.Chunk(sending, writeSize) {
			err := c.SetWriteDeadline(time.Now().Add(c.timeout))
			if err == nil {
				_, err = c.Conn.Write(part)
			}
			if err != nil {
				c.fail(err)
				_ = c.Conn.Close() // the reader notices, and with it amqp091-go
				return
			}
		}
		if cap(sending) > 2*coalesceLimit {
			sending = nil // do not keep the memory of one huge message
		}
	}
}

func (c *coalescing) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		close(c.drained)
	}
	c.change.Signal()
}

// Close ends the connection. Unsent bytes are discarded.
func (c *coalescing) Close() error {
	c.fail(net.ErrClosed)
	err := c.Conn.Close()
	<-c.done
	return err
}
