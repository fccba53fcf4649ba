package nats

import (
	"net/url"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/redrive-go/redrive/brokers/driver"
)

const (
	uuidHeader = "_watermill_message_uuid" // watermill-nats' own
	// oddHeader holds the headers that NATS cannot carry, encoded like the query of a URL.
	oddHeader = "Redrive-Headers"

	idHeader     = "Nats-Msg-Id"
	releaseID    = "redrive-release " // begins the id of a suspect that was stored again; the rest is its delivery
	statusHeader = "Status"

	scheduleHeader = "Nats-Schedule"
	targetHeader   = "Nats-Schedule-Target"
	schedulerFrom  = "Nats-Scheduler"     // set by the server on a fired schedule
	schedulerNext  = "Nats-Schedule-Next" // likewise
)

// render converts o to a message without a subject.
func render(o *driver.Outgoing) *nats.Msg {
	m := &nats.Msg{Data: o.Message.Payload, Header: make(nats.Header, len(o.Message.Metadata)+len(o.Extra)+3)}
	odd := url.Values{}
	for key, value := range o.Headers() {
		if isPlainKey(key) && isPlainValue(value) {
			m.Header[key] = []string{value}
		} else {
			odd.Set(key, value)
		}
	}
	if id := o.Message.UUID; isPlainValue(id) {
		m.Header[uuidHeader] = []string{id}
	} else {
		odd.Set(uuidHeader, id)
	}
	if len(odd) > 0 {
		m.Header[oddHeader] = []string{odd.Encode()}
	}
	return m
}

// isPlainKey reports whether a header of that name arrives unchanged. The client drops names that are not HTTP tokens,
// and the server interprets its own.
func isPlainKey(key string) bool {
	if key == "" || key == uuidHeader || key == oddHeader || key == statusHeader || isServers(key) {
		return false
	}
	return !strings.ContainsFunc(key, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
	})
}

// isServers reports whether the server interprets the header.
func isServers(key string) bool {
	const prefix = "nats-"
	return len(key) >= len(prefix) && strings.EqualFold(key[:len(prefix)], prefix)
}

func isPlainValue(value string) bool {
	return value == "" || strings.IndexByte(value, '\n') < 0 && strings.IndexByte(value, '\r') < 0 &&
		value[0] > ' ' && value[len(value)-1] > ' '
}

// parse converts m to a message that shares nothing with it.
func parse(m *nats.Msg) *message.Message {
	out := message.NewMessage("", append([]byte{}, m.Data...))
	headers := out.Metadata
	for key, values := range m.Header {
		headers[key] = values[0]
	}
	delete(headers, schedulerFrom)
	delete(headers, schedulerNext)
	if strings.HasPrefix(headers[idHeader], releaseID) {
		delete(headers, idHeader)
	}
	if odd, err := url.ParseQuery(headers[oddHeader]); err == nil { // otherwise it is foreign
		delete(headers, oddHeader)
		for key, values := range odd {
			headers[key] = values[0]
		}
	}
	out.UUID = headers[idHeader] // the id given by another producer
	if id, ours := headers[uuidHeader]; ours {
		out.UUID = id
	}
	delete(headers, uuidHeader)
	return out
}
