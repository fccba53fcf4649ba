package rabbitmq

import (
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

func TestExplain_NamesArgumentAndBothValues(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		want   ArgumentError
	}{
		"a value against none": {
			"PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'orders' in vhost '/': received the value " +
				"'5000' of type 'long' but current is none",
			ArgumentError{Kind: "queue", Name: "orders", Argument: "x-message-ttl", Want: "5000", Have: "none"},
		},
		"none against a value": {
			"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'it's' in vhost 'a'b': received none but current " +
				"is the value 'quorum' of type 'longstr'",
			ArgumentError{Kind: "queue", Name: "it's", Argument: "x-queue-type", Want: "none", Have: "quorum"},
		},
		"two values": {
			"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': received the value 'quorum' of " +
				"type 'longstr' but current is the value 'classic' of type 'longstr'",
			ArgumentError{Kind: "queue", Name: "q", Argument: "x-queue-type", Want: "quorum", Have: "classic"},
		},
		"an empty value against none": {
			"PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-exchange' for queue 'q' in vhost '/': received the value " +
				"'' of type 'longstr' but current is none",
			ArgumentError{Kind: "queue", Name: "q", Argument: "x-dead-letter-exchange", Want: `""`, Have: "none"},
		},
		"an exchange's type": {
			"PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'bus' in vhost '/': received 'topic' but current is " +
				"'direct'",
			ArgumentError{Kind: "exchange", Name: "bus", Argument: "type", Want: "topic", Have: "direct"},
		},
		"values that were cut off": {
			"PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-routing-key' for queue 'orders' in vhost '/': received the " +
				"value 'orders' of type 'longstr' but current...",
			ArgumentError{Kind: "queue", Name: "orders", Argument: "x-dead-letter-routing-key", Want: "...", Have: "..."},
		},
		"durability": {
			"PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': received 'true' but current is " +
				"'false'",
			ArgumentError{Kind: "queue", Name: "q", Argument: "durable", Want: "true", Have: "false"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := explain(&amqp.Error{Code: amqp.PreconditionFailed, Reason: tc.reason, Server: true})
			var got *ArgumentError
			require.ErrorAs(t, err, &got)
			if tc.want.Have != "none" && got.haveType != "" {
				require.Equal(t, "longstr", got.haveType)
			}
			got.haveType = ""
			require.Equal(t, tc.want, *got)
		})
	}
	other := &amqp.Error{Code: amqp.PreconditionFailed, Reason: "something else"}
	require.Same(t, other, explain(other))
	plain := errors.New("plain")
	require.Same(t, plain, explain(plain))
}

// A plan of a program may have the argument already.
func TestImpossible_ReplacesAnArgument(t *testing.T) {
	args := amqp.Table{"x-max-length": 5, "x-queue-type": "quorum"}
	require.Equal(t, amqp.Table{"x-max-length": true, "x-queue-type": "quorum"}, impossible(args, "x-max-length"))
	require.Equal(t, 5, args["x-max-length"])
	require.Equal(t, amqp.Table{"x-max-length": true}, impossible(nil, "x-max-length"))
}
