package middleware_test

import (
	"context"
	"testing"
	"unsafe"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

// A router runs each message in a new goroutine. The pipeline's frames before and after the handler fit into its stack,
// also for messages of services without the pipeline: copying the stack costs more than the rest of the pipeline.
// Reading a structured body takes more.
func TestPipeline_StacksAreNotCopied(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's instrumentation adds frames")
	}
	for name, m := range map[string]*message.Message{
		"binary envelope": benchMessage(t),
		"foreign object":  message.NewMessage("1", []byte(`{"order": "42", "total": 19.90}`)),
		"foreign bytes":   message.NewMessage("1", []byte("42")),
	} {
		t.Run(name, func(t *testing.T) {
			const n = 100
			moved := 0
			router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
			require.NoError(t, err)
			router.AddMiddleware(countMoves(&moved), benchPipeline(t, nil).Middleware)
			sub := &ideal{make(chan *message.Message)}
			router.AddConsumerHandler("orders", "orders", sub, func(*message.Message) error { return nil })
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- router.Run(ctx) }()
			for range n {
				next := m.Copy()
				sub.messages <- next
				<-next.Acked()
			}
			stop()
			close(sub.messages)
			require.NoError(t, <-ended)
			// The first ones fill the pools.
			require.Less(t, moved, n/10, "stacks that were copied, of %d", n)
		})
	}
}

// countMoves counts the calls after which a variable on the stack has moved.
func countMoves(moved *int) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(m *message.Message) ([]*message.Message, error) {
			var here byte
			before := uintptr(unsafe.Pointer(&here))
			produced, err := next(m)
			if uintptr(unsafe.Pointer(&here)) != before {
				*moved++
			}
			return produced, err
		}
	}
}
