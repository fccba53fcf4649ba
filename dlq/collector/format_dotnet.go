package collector

import (
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// nServiceBusTime is the wire format of NServiceBus: not ISO 8601, with a colon before the microseconds, in UTC. Go's
// layouts have no colon there, so it is replaced with a dot first.
const nServiceBusTime = "2006-01-02 15:04:05.000000 Z"

// readNServiceBus reads the error forwarding headers that recoverability adds.
func readNServiceBus(m *message.Message, d *Death) bool {
	h := m.Metadata
	queue := h["NServiceBus.FailedQ"]
	if queue == "" {
		return false
	}
	queue, _, _ = strings.Cut(queue, "@") // Sales@MACHINE on transports whose addresses have a host
	d.Topic, d.Consumer = queue, queue
	d.Handler = h["NServiceBus.ProcessingEndpoint"]
	d.Class = h["NServiceBus.ExceptionInfo.ExceptionType"]
	d.Err.Message = h["NServiceBus.ExceptionInfo.Message"]
	d.Err.Trace = h["NServiceBus.ExceptionInfo.StackTrace"]
	d.At = parseNServiceBusTime(h["NServiceBus.TimeOfFailure"])
	return true
}

func parseNServiceBusTime(text string) time.Time {
	if i := strings.LastIndexByte(text, ':'); i >= 0 {
		text = text[:i] + "." + text[i+1:]
	}
	t, err := time.Parse(nServiceBusTime, text)
	if err != nil {
		return time.Time{}
	}
	return t
}

func ownedByNServiceBus(header string) bool {
	switch header {
	case "NServiceBus.FailedQ", "NServiceBus.TimeOfFailure", "NServiceBus.Retries", "NServiceBus.Retries.Timestamp",
		"NServiceBus.FLRetries", "NServiceBus.DelayedRetries", "NServiceBus.DelayedRetries.Timestamp":
		return true
	default:
		return strings.HasPrefix(header, "NServiceBus.ExceptionInfo.")
	}
}

// readMassTransit reads what the error transport of MassTransit adds; a skipped message, which no consumer wanted, only
// has MT-Reason.
func readMassTransit(m *message.Message, d *Death) bool {
	h := m.Metadata
	if h["MT-Reason"] == "" && h["MT-Fault-ExceptionType"] == "" && h["MT-Fault-Message"] == "" {
		return false
	}
	queue := queueOfAddress(h["MT-Fault-InputAddress"])
	d.Topic, d.Consumer = queue, queue
	d.Handler = h["MT-Fault-ConsumerType"]
	d.Class = h["MT-Fault-ExceptionType"]
	d.Err.Message = h["MT-Fault-Message"]
	d.Err.Trace = h["MT-Fault-StackTrace"]
	if at, err := time.Parse(time.RFC3339Nano, h["MT-Fault-Timestamp"]); err == nil {
		d.At = at
	}
	d.Attempts = 1 + count(h["MT-Fault-RetryCount"]) + count(h["MT-Fault-RedeliveryCount"])
	if h["MT-Reason"] == "dead-letter" {
		d.Reason, d.Attempts = envelope.ReasonPermanent, 0
		if d.Err.Message == "" {
			d.Err.Message = "skipped: no consumer of the endpoint takes this message type"
		}
	}
	return true
}

// queueOfAddress extracts the queue from rabbitmq://host/vhost/queue?durable=true or queue:name.
func queueOfAddress(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	if u.Opaque != "" {
		return u.Opaque
	}
	if name := path.Base(u.Path); name != "." && name != "/" {
		return name
	}
	return ""
}

func ownedByMassTransit(header string) bool {
	// MT-Fault-Address is where the sender wants faults to go, and part of the message.
	return header == "MT-Reason" || strings.HasPrefix(header, "MT-Fault-") && header != "MT-Fault-Address"
}
