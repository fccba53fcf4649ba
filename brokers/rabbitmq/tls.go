package rabbitmq

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// explainHandshake says what to do when a server was reached and no connection came of it. The URL's parameters are those
// of RabbitMQ's own URIs.
func explainHandshake(err error, encrypted bool) error {
	var (
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		exception *amqp.Error
	)
	var hint string
	switch {
	case err == nil:
		return nil
	case errors.As(err, &authority):
		hint = "the authority of the server's certificate is not trusted here: put its certificate into a file and add cacertfile=<file> to the URL, " +
			"or correct the file that cacertfile names"
	case errors.As(err, &host):
		hint = "the server's certificate is for another name: connect by a name that it is for, or add server_name_indication=<that name> to the URL"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		hint = "renew the server's certificate, or correct the clock of this machine"
	case errors.As(err, &record):
		hint = "this port does not speak TLS: use the broker's TLS port (5671), or amqp:// on this one"
	case !errors.As(err, &exception) || exception.Server || exception.Code != amqp.FrameError && exception.Code != amqp.ChannelError:
		return err
	case encrypted:
		// With TLS 1.3 the server looks at the client's certificate after the handshake. Whether its verdict can still be read
		// depends on who is faster.
		hint = "the server ended the connection after the TLS handshake: if it asks its clients for certificates, add certfile=<file>&keyfile=<file> " +
			"of one that it trusts to the URL; its log says why"
	case exception.Code == amqp.FrameError:
		hint = "this port does not answer in AMQP: use amqps:// if it is the broker's TLS port, or its AMQP port (5672)"
	default:
		return err
	}
	return fmt.Errorf("%w: %s", err, hint)
}
