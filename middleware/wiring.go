package middleware

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
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
		if _, ok := known[name]; !ok && p.cfg.HandlerName == nil {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		return unknownHandlers(unknown, slices.Collect(maps.Keys(known)))
	}
	for _, find := range []func(*message.Router) *neighbour{unfitIn, p.unfitSubscriber} {
		if n := guardedValue(nil, func() *neighbour { return find(r) }); n != nil {
			return n.refusal()
		}
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
	missing atomic.Int32 // overrides whose handler has had no message
	unnamed atomic.Int32 // handlers that have had no message

	mu    sync.Mutex
	named map[string]bool
}

func (p *Pipeline) learnName(ctx context.Context) {
	name, r := message.HandlerNameFromCtx(ctx), &p.names
	if name == "" {
		return // not called by a router: it stays unnamed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, overridden := p.handlers[name]; overridden && !r.named[name] {
		r.missing.Add(-1)
	}
	r.named[name] = true
	r.unnamed.Add(-1)
}

// checkNames returns an error if an override cannot belong to any handler.
func (p *Pipeline) checkNames() error {
	r := &p.names
	if r.missing.Load() <= r.unnamed.Load() {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var unknown []string
	for name := range p.handlers {
		if !r.named[name] {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) <= int(r.unnamed.Load()) { // a handler has learned its name since the counts were compared
		return nil
	}
	return unknownHandlers(unknown, slices.Collect(maps.Keys(r.named)))
}

// refuse returns why a message is nacked. It is paced, because the message is redelivered at once, and checks twice: a
// router starts its handlers one by one, and the first may have a message before the last is wrapped.
func (p *Pipeline) refuse(ctx context.Context) error {
	if p.checkNames() == nil {
		return nil
	}
	_ = wait.For(ctx, p.cfg.NackDelay)
	err := p.checkNames()
	if err != nil {
		p.log(ctx, LevelCritical, "message refused", slog.String("error", err.Error()))
	}
	return err
}

// unfit are the Watermill middlewares that lose messages next to the pipeline, on either side of it, by the names of
// their functions. docs/composition.md lists what the others do to a failing message.
var unfit = [...]*neighbour{
	{
		name: "Watermill's Deduplicator", function: "(*Deduplicator).Middleware",
		why: "it treats the retry of a failed message as a duplicate and acks it: leave it out, or use package idempotency " +
			"inside",
		// A nacked message is redelivered, and would be acked as a duplicate.
		keep: true,
	},
	{
		name: "Watermill's InstantAck", function: "InstantAck",
		why: "it acks messages before they are settled, and one that cannot be retried or dead-lettered is lost: omit it",
		// A message that is already acked can only be handled.
		acked: true,
	},
	{
		name: "Watermill's IgnoreErrors", function: "IgnoreErrors.Middleware",
		why: "it acks messages that fail with an error that it names, by its text, without a retry, a dead letter or a log " +
			"line, and outside that includes those that the pipeline returns at a shutdown: use a Rule that skips",
	},
}

// amqpSubscriber is watermill-amqp's, when the Rescheduler is a [TableWriter]. Its DefaultMarshaler fails on a header
// that is a table, and it then redelivers the message at once, forever, before the router has seen it.
var amqpSubscriber = &neighbour{
	name: "Watermill's amqp.Subscriber",
	why: "its DefaultMarshaler cannot read the x-death header that RabbitMQ gives a retry, which is then redelivered " +
		"forever and reaches no handler: subscribe with the broker that is the Rescheduler, open watermill+amqp://, or " +
		"configure a Marshaler that reads every header, such as that of brokers/watermill/amqp, and add Pipeline.Plugin, " +
		"which checks it",
}

// secondPipeline is the pipeline itself, around a handler that already has one. Each message would be settled by the
// inner one, and then be a success for the outer one: a redriven message that failed again would close its dead letter.
var secondPipeline = &neighbour{
	name: "a pipeline",
	why: "the handler has one already, so each failure would be a success for the outer one: add one pipeline, to the " +
		"router or to its handlers, and use Config.Handlers for a handler that differs",
}

// neighbour is a middleware, or a subscriber, that must not be used next to the pipeline.
type neighbour struct {
	name, function, why string
	keep                bool // outside the pipeline a message must not be returned
	acked               bool // outside the pipeline the message is acked
}

func (n *neighbour) refusal() error {
	return fmt.Errorf("middleware: %w: %s is used next to it: %s", ErrMiswired, n.name, n.why)
}

// watermills prefixes the function names of Watermill's middlewares.
const watermills = "/watermill/message/router/middleware."

// unfitFunction returns the neighbour to which a function of that name belongs, or nil.
func unfitFunction(name string) *neighbour {
	_, name, ours := strings.Cut(name, watermills)
	if !ours {
		return nil
	}
	for _, n := range unfit {
		if rest, found := strings.CutPrefix(name, n.function); found && (rest == "" || rest[0] == '.' || rest[0] == '-') {
			return n
		}
	}
	return nil
}

func functionName(f reflect.Value) string {
	if f.Kind() != reflect.Func || f.IsNil() {
		return ""
	}
	return runtime.FuncForPC(f.Pointer()).Name()
}

// unfitIn finds neighbours of the pipeline among the middlewares of a router. The router has no accessor for them; if
// its field is not as in v1.5, it panics, and the first message finds them.
func unfitIn(r *message.Router) *neighbour {
	type place struct {
		name, handler string
		all           bool
	}
	var added, pipelines []place
	list := reflect.ValueOf(r).Elem().FieldByName("middlewares")
	for i := range list.Len() {
		m := list.Index(i)
		p := place{
			functionName(m.FieldByName("Handler")), m.FieldByName("HandlerName").String(), m.FieldByName("IsRouterLevel").Bool(),
		}
		if added = append(added, p); strings.Contains(p.name, ".(*Pipeline).Middleware") {
			pipelines = append(pipelines, p)
		}
	}
	for i, p := range pipelines {
		for _, other := range pipelines[:i] {
			if p.all || other.all || p.handler == other.handler {
				return secondPipeline
			}
		}
	}
	if len(pipelines) == 0 { // it is wrapped
		pipelines = []place{{all: true}}
	}
	for _, a := range added {
		n := unfitFunction(a.name)
		for _, p := range pipelines {
			if n != nil && (a.all || p.all || a.handler == p.handler) {
				return n
			}
		}
	}
	return nil
}

// unfitSubscriber finds one among the handlers of a router, which has no accessor for them either.
func (p *Pipeline) unfitSubscriber(r *message.Router) *neighbour {
	if !p.writesTables() {
		return nil
	}
	for h := reflect.ValueOf(r).Elem().FieldByName("handlers").MapRange(); h.Next(); {
		s := reflect.Indirect(h.Value().Elem().FieldByName("subscriber").Elem())
		if !strings.Contains(s.Type().PkgPath(), "/watermill-amqp/") || s.Type().Name() != "Subscriber" {
			continue
		}
		marshaler := reflect.Indirect(s.FieldByName("config").FieldByName("Marshaler").Elem())
		if marshaler.Type().PkgPath() == s.Type().PkgPath() {
			return amqpSubscriber
		}
	}
	p.looked.Store(true)
	return nil
}

func (p *Pipeline) writesTables() bool {
	w, ok := p.cfg.Rescheduler.(TableWriter)
	return ok && w.WritesTables()
}

// delivers reports whether n, a subscriber, has delivered the message of ctx.
func (n *neighbour) delivers(ctx context.Context) bool {
	_, ours := envelope.OriginFrom(ctx)
	return !ours && "Watermill's "+message.SubscriberNameFromCtx(ctx) == n.name
}

// surroundings are the callers and callees of the pipeline in one handler.
type surroundings struct {
	fine  atomic.Bool // nothing is left to check
	look  sync.Once
	inner *neighbour // called by the pipeline
	outer *neighbour // calls the pipeline
}

// wrap returns the surroundings of a handler that the pipeline is put around.
func (p *Pipeline) wrap(next message.HandlerFunc) *surroundings {
	p.names.unnamed.Add(1)
	return &surroundings{inner: unfitFunction(functionName(reflect.ValueOf(next)))}
}

// outerNeighbour finds one among the callers.
func outerNeighbour() *neighbour {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		frame, more := frames.Next()
		if n := unfitFunction(frame.Function); n != nil {
			return n
		}
		if !more {
			return nil
		}
	}
}

// inAttempt reports whether a pipeline is already running the message.
func inAttempt(m *message.Message) bool {
	attempt, running := AttemptFrom(m.Context())
	if !running {
		return false
	}
	var c envelope.Control
	return c.Read(m) == nil && c.MessageID == attempt.MessageID
}

// examine checks the surroundings on the first messages, and refuses messages that would be lost.
//
//go:noinline
func (p *Pipeline) examine(m *message.Message, s *surroundings) error {
	ctx := m.Context()
	s.look.Do(func() {
		p.learnName(ctx)
		s.outer = outerNeighbour()
		if inAttempt(m) { //nolint:contextcheck // the message has it
			s.outer = secondPipeline
		}
		if s.inner == nil && !p.looked.Load() && amqpSubscriber.delivers(ctx) && p.writesTables() {
			s.inner = amqpSubscriber
		}
		for _, n := range []*neighbour{s.inner, s.outer} {
			if n != nil {
				p.log(ctx, LevelCritical, "messages would be lost", slog.String("error", n.refusal().Error()))
			}
		}
	})
	switch {
	case s.outer != nil && s.outer.keep:
		<-ctx.Done() // unacked, until it is delivered to another process
		return p.giveBack(ctx, s.outer.refusal())
	case s.inner != nil:
		_ = wait.For(ctx, p.cfg.NackDelay)
		return s.inner.refusal()
	case s.outer != nil && s.outer.acked:
		m.SetContext(context.WithoutCancel(ctx)) // it ends with the ack, and an acked message can only be handled
	case s.outer != nil:
		_ = wait.For(ctx, p.cfg.NackDelay)
		return s.outer.refusal()
	case p.names.missing.Load() <= 0: // below 0 with Config.HandlerName, whose names are not learned
		s.fine.Store(true)
		return nil
	}
	return p.refuse(m.Context())
}
