package middleware

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Timeout gives the message's context a deadline of d from now while the handler runs, and restores the context
// afterwards. The handler has to watch its context: one that does not keeps running, and keeps its message. Unlike
// Watermill's Timeout it costs one allocation, and outer middlewares do not see a cancelled context.
//
// A [Pipeline] does this itself, see [Config.Timeout]. Timeout is for chains composed by hand.
func Timeout(d time.Duration) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(m *message.Message) ([]*message.Message, error) {
			parent := m.Context()
			ctx := &attemptContext{parent: parent, deadline: time.Now().Add(d)}
			if outer, ok := parent.Value(attemptKey{}).(*attemptContext); ok {
				ctx.control, ctx.limit = outer.control, outer.limit
			}
			m.SetContext(ctx)
			defer func() {
				ctx.release()
				m.SetContext(parent)
			}()
			return next(m)
		}
	}
}
