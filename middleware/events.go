package middleware

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// ErrNoEventHandler is matched by the error of an event for which [Events] has no handler. It is retried and
// dead-lettered like any other: a binding without a handler is a fault of the wiring, and the event may be needed.
var ErrNoEventHandler = errors.New("no handler for this event")

// Events dispatches the events of one queue to one handler each, as in a service on a bus: by name, or by patterns of
// names in which * matches one word between dots and # any number of words. An exact name wins over a pattern, and
// among patterns the one with the most words that are not wildcards.
//
//	events := middleware.Events{
//		"invoice.created": envelope.Handle(create),
//		"user.#":          envelope.Handle(audit),
//	}
//	names := events.Names()
//	sub := broker.Subscriber(brokers.WithPatterns(names[1:]...))
//	router.AddConsumerHandler("invoice-service", names[0], sub, events.Handle)
//
// It must not be changed while it is in use.
type Events map[string]message.NoPublishHandlerFunc

// Names returns the names and patterns, sorted: what to subscribe to.
func (e Events) Names() []string { return slices.Sorted(maps.Keys(e)) }

// Handle runs the handler of the message's event, see [envelope.EventName].
func (e Events) Handle(m *message.Message) error {
	name := envelope.EventName(m)
	if h := e[name]; h != nil {
		return h(m)
	}
	best, words := "", -1
	for _, pattern := range e.Names() {
		if n := literals(pattern); n > words && e[pattern] != nil && envelope.MatchEvent(pattern, name) {
			best, words = pattern, n
		}
	}
	if best == "" {
		return fmt.Errorf("%w: %q: there are handlers for %s", ErrNoEventHandler, logText(name),
			strings.Join(e.Names(), ", "))
	}
	return e[best](m)
}

// literals counts the words of a pattern that are not wildcards.
func literals(pattern string) int {
	n := 0
	for word := range strings.SplitSeq(pattern, ".") {
		if word != "*" && word != "#" {
			n++
		}
	}
	return n
}

// KeyIsDebug is the header, or the member of the JSON body's "system" object (is_debug), that marks a message as a
// debug message.
const KeyIsDebug = "system.is_debug"

// handleSpecial runs the handler of a system event or of a debug message, which takes precedence over user code and is
// acked whatever happens. It reports false for all other messages.
func (p *Pipeline) handleSpecial(m *message.Message, c *envelope.Control) bool {
	name := envelope.EventName(m)
	h, debug := p.cfg.SystemEvents[name], false
	if h == nil && p.cfg.Debug != nil && isDebug(m) {
		h, debug = p.cfg.Debug, true
	}
	if h == nil {
		return false
	}

	parent := m.Context()
	returned := false
	defer func() {
		p.redriven(parent, c)
		if !returned {
			m.Ack() // the handler has ended the goroutine: nothing else acks it
		}
	}()
	ctx := parent
	if p.base.Timeout > 0 {
		timed, cancel := context.WithTimeout(parent, p.base.Timeout)
		defer cancel()
		ctx = timed
	}
	m.SetContext(ctx)
	err := guarded(func() error { return h(m) })
	m.SetContext(parent)
	returned = true
	level := slog.LevelDebug
	if err != nil {
		level = slog.LevelError
	}
	p.log(parent, level, "message handled before user code", slog.Bool("debug", debug),
		slog.String("event", logText(name)), slog.String("error", logText(errorText(err))))
	return true
}

// isDebug parses the body only if the word occurs in it: the body may be large and not JSON at all.
func isDebug(m *message.Message) bool {
	if v, ok := m.Metadata[KeyIsDebug]; ok {
		return truthy(v)
	}
	if !bytes.Contains(m.Payload, []byte(`"is_debug"`)) {
		return false
	}
	var body struct {
		System struct {
			IsDebug json.RawMessage `json:"is_debug"`
		} `json:"system"`
	}
	return json.Unmarshal(m.Payload, &body) == nil && truthy(strings.Trim(string(body.System.IsDebug), `"`))
}

func truthy(text string) bool { return text == "true" || text == "1" }
