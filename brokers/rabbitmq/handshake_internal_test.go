package rabbitmq

import (
	"fmt"
	"net"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// The server refuses a client without a certificate after the handshake, and how much of the refusal arrives depends on
// which side notices the end of the connection first.
func TestExplainHandshake_NoCertificate(t *testing.T) {
	closed := &net.OpError{Op: "write", Net: "tcp", Err: net.ErrClosed}
	anonymous := handshake{encrypted: true, anonymous: true}
	for name, tc := range map[string]struct {
		err    error
		how    handshake
		hinted bool
	}{
		"the reader reports it":                    {&amqp.Error{Code: amqp.FrameError, Reason: "EOF"}, anonymous, true},
		"the connection was closed under a writer": {fmt.Errorf("open: %w", closed), anonymous, true},
		"there was a certificate":                  {closed, handshake{encrypted: true}, false},
		"there was no TLS":                         {closed, handshake{anonymous: true}, false},
	} {
		err := explainHandshake(tc.err, tc.how)
		require.ErrorIs(t, err, tc.err, name)
		if tc.hinted {
			require.ErrorContains(t, err, "keyfile=", name)
		} else {
			require.Equal(t, tc.err, err, name)
		}
	}
}
