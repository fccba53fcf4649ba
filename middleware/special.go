package middleware

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// KeyIsDebug is the header, or the member of the JSON body's "system" object (is_debug), that marks a message as a
// debug message.
const KeyIsDebug = "system.is_debug"

// handleSpecial runs the handler of a system event or of a debug message, which takes precedence over user code and is
// acked whatever happens. It reports false for all other messages.
func (p *Pipeline) handleSpecial(m *message.Message) (handled bool, err error) {
	name := envelope.EventName(m)
	h, debug := p.cfg.SystemEvents[name], false
	if h == nil && p.cfg.Debug != nil && isDebug(m) {
		h, debug = p.cfg.Debug, true
	}
	if h == nil {
		return false, nil
	}

	parent := m.Context()
	returned := false
	defer func() {
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
	err = guarded(func() error { return h(m) })
	m.SetContext(parent)
	returned = true
	level := slog.LevelDebug
	if err != nil {
		level = slog.LevelError
	}
	p.log(parent, level, "message handled before user code", slog.Bool("debug", debug),
		slog.String("event", logText(name)), slog.String("error", logText(errorText(err))))
	return true, nil
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
