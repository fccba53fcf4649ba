package rabbitmq

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// A queue that does not answer was reported as missing, and as one without messages and readers.
func TestIsNotFound(t *testing.T) {
	for reason, want := range map[string]bool{
		"NOT_FOUND - no queue 'timeout' in vhost '/'":                                                         true,
		"NOT_FOUND - no exchange 'orders' in vhost '/'":                                                       true,
		"NOT_FOUND - failed to perform operation on queue 'orders' in vhost '/' due to timeout":               false,
		"NOT_FOUND - home node 'rabbit@a' of durable queue 'orders' in vhost '/' is down or inaccessible":     false,
		"NOT_FOUND - queue 'orders' in vhost '/' process is stopped by supervisor":                            false,
		"NOT_FOUND - queue 'orders' in vhost '/' has crashed and failed to restart":                           false,
		"NOT_FOUND - failed [...] on queue 'orders': its master replica <1> may be stopping or being demoted": false,
	} {
		require.Equal(t, want, isNotFound(&amqp.Error{Code: amqp.NotFound, Reason: reason}), reason)
	}
}

// A refusal that would end the next connection too is reported at once; see TestSubscribe_QuorumQueueWithoutALeader.
func TestIsTemporary(t *testing.T) {
	open := &amqp.Connection{}
	for refusal, want := range map[*amqp.Error]bool{
		{Server: true, Code: amqp.NotFound, Reason: "NOT_FOUND - no queue 'orders' in vhost '/'"}:                  false,
		{Server: true, Code: amqp.NotFound, Reason: "NOT_FOUND - failed [...] on queue 'orders' due to timeout"}:   true,
		{Server: true, Code: amqp.NotFound, Reason: "NOT_FOUND - queue 'orders' process is stopped by supervisor"}: true,
		{Server: true, Code: amqp.NotFound, Reason: "NOT_FOUND - [...] may be stopping or being demoted"}:          true,
		{Server: true, Code: amqp.PreconditionFailed}:                                                              false,
		{Server: true, Code: amqp.InternalError}:                                                                   false,
	} {
		require.Equal(t, want, isTemporary(refusal, open), "%v", refusal)
	}
}
