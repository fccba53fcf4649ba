package rabbitmq

import (
	"errors"
	"fmt"
	"net"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers/driver"
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

// A server that cannot be reached for now was treated as a wrong configuration: the connection ended before the first
// write or when the virtual host was opened, or behind one that encrypts; or the server reports it.
func TestExplainHandshake_Temporary(t *testing.T) {
	server := func(code int, reason string) error { return &amqp.Error{Server: true, Code: code, Reason: reason} }
	frame := func(reason string) error { return &amqp.Error{Code: amqp.FrameError, Reason: reason} }
	anonymous := handshake{encrypted: true, anonymous: true}
	for _, c := range []struct {
		err  error
		how  handshake
		want bool
	}{
		{frame("EOF"), handshake{}, true},
		{frame("EOF"), anonymous, true},
		{frame("remote error: tls: certificate required"), anonymous, false},
		{frame("remote error: tls: certificate required"), handshake{encrypted: true}, false},
		{frame("EOF"), handshake{answeredTLS: true}, false},
		{amqp.ErrClosed, handshake{}, true},
		{amqp.ErrClosed, anonymous, true},
		{amqp.ErrVhost, handshake{}, true},
		{amqp.ErrCredentials, handshake{}, false},
		{amqp.ErrSASL, handshake{}, false},
		{server(amqp.ConnectionForced, "broker forced connection closure with reason 'shutdown'"), handshake{}, true},
		{server(amqp.InternalError, "vhost 'shop' is down"), handshake{}, true},
		{server(amqp.NotAllowed, "NOT_ALLOWED - vhost shop not found"), handshake{}, false},
		{server(amqp.NotAllowed, "NOT_ALLOWED - access [...] refused: connection limit (5) is reached"), handshake{}, true},
		{server(amqp.AccessRefused, "ACCESS_REFUSED - Login was refused"), handshake{}, false},
	} {
		require.Equal(t, c.want, errors.Is(explainHandshake(c.err, c.how), driver.ErrTemporary), "%v: %+v", c.err, c.how)
	}
}
