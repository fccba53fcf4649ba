package middleware

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/internal/wait"
)

// ErrMiswired is matched by the error of a pipeline that does not fit the router it was added to. [Pipeline.Plugin]
// returns it before the router starts; without the plugin the messages are nacked with it, paced, until the program is
// fixed.
var ErrMiswired = errors.New("pipeline does not fit the router")

// Plugin is for router.AddPlugin. It makes the router's Run return an error that matches [ErrMiswired], before any
// message is consumed, if [Config.Handlers] names a handler that the router does not have, if a handler has two
// pipelines, or if a middleware of Watermill next to the pipeline would lose messages; it cannot check handlers that
// are added to a running router. It adds [Pipeline.PublisherDecorator] to the router.
func (p *Pipeline) Plugin(r *message.Router) error {
	known := r.Handlers()
	var unknown []string
	for name := range p.handlers {
		if _, ok := known[name]; !ok {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		return unknownHandlers(unknown, slices.Collect(maps.Keys(known)))
	}
	if n := cmp.Or(unfitIn(r), p.unfitSubscriber(r)); n != nil {
		return n.refusal()
	}
	r.AddPublisherDecorators(p.PublisherDecorator)
	return nil
}

func unknownHandlers(unknown, known []string) error {
	slices.Sort(unknown)
	slices.Sort(known)
	return fmt.Errorf("middleware: %w: Config.Handlers overrides %s, but the handlers are %s", ErrMiswired,
		quoted(unknown), quoted(known))
}

func quoted(names []string) string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = fmt.Sprintf("%q", name)
	}
	return strings.Join(out, ", ")
}

// handlerNames finds overrides for handlers that do not exist. A pipeline does not know which handlers a router has,
// but it wraps each of them and learns its name with its first message: an override is certainly wrong once there are
// fewer unnamed handlers than overrides without a handler.
type handlerNames struct {
	pipeline *Pipeline
	refusal  atomic.Pointer[error]

	mu      sync.Mutex
	unnamed int
	named   map[string]bool
}

// register is called for every handler that the pipeline wraps. The function that it returns is called with each
// message's context, and returns why the message is refused.
func (r *handlerNames) register() func(context.Context) error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	r.unnamed++
	r.check()
	r.mu.Unlock()
	var introduced atomic.Bool
	return func(ctx context.Context) error {
		if !introduced.Load() && !introduced.Swap(true) {
			r.learnName(ctx)
		}
		if refusal := r.refusal.Load(); refusal != nil {
			return *refusal
		}
		return nil
	}
}

func (r *handlerNames) learnName(ctx context.Context) {
	name := message.HandlerNameFromCtx(ctx)
	if name == "" {
		return // not called by a router: it stays unnamed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unnamed--
	r.named[name] = true
	r.check()
}

func (r *handlerNames) check() {
	var unknown []string
	for name := range r.pipeline.handlers {
		if !r.named[name] {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) <= r.unnamed {
		r.refusal.Store(nil) // also if a handler was added later
		return
	}
	err := unknownHandlers(unknown, slices.Collect(maps.Keys(r.named)))
	r.refusal.Store(&err)
}

// refuse returns why a message is nacked. It is paced, because the message is redelivered at once, and checks twice: a
// router starts its handlers one by one, and the first may have a message before the last is wrapped.
func (p *Pipeline) refuse(ctx context.Context, refusal func(context.Context) error) error {
	if refusal(ctx) == nil {
		return nil
	}
	_ = wait.For(ctx, p.cfg.NackDelay)
	err := refusal(ctx)
	if err != nil {
		p.log(ctx, LevelCritical, "message refused", slog.String("error", err.Error()))
	}
	return err
}
