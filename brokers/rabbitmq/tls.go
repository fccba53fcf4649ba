package rabbitmq

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// encrypt wraps conn in TLS with the files and the server name of the broker's URL.
func encrypt(ctx context.Context, conn net.Conn, uri *amqp.URI) (net.Conn, error) {
	cfg := &tls.Config{ServerName: uri.ServerName, MinVersion: tls.VersionTLS12}
	if cfg.ServerName == "" {
		cfg.ServerName = uri.Host
	}
	if uri.CACertFile != "" {
		var err error
		if cfg.RootCAs, err = rootsIn(uri.CACertFile); err != nil {
			return nil, err
		}
	}
	if uri.CertFile != "" && uri.KeyFile != "" {
		certificate, err := tls.LoadX509KeyPair(uri.CertFile, uri.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read certfile and keyfile: %w", err)
		}
		cfg.Certificates = []tls.Certificate{certificate}
	}
	client := tls.Client(conn, cfg)
	if err := client.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return client, nil
}

// rootsIn reads the trusted authorities.
func rootsIn(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read cacertfile: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	return roots, nil
}

// handshake describes a connection that failed before it was open.
type handshake struct {
	encrypted   bool
	answeredTLS bool // the server answered with a TLS alert
	anonymous   bool // the first attempt with this URL, which names no certificate
}

const certificateHint = "the server ended the connection after the TLS handshake: if it asks its clients for " +
	"certificates, add certfile=<file>&keyfile=<file> of one that it trusts to the URL; its log has the reason"

// explainHandshake adds a remedy to the error of a connection that failed before it was open. A broker that is
// restarting resets connections too: without a sign of TLS there is no hint. The parameters are those of RabbitMQ's
// URIs.
func explainHandshake(err error, h handshake) error {
	var (
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		record    tls.RecordHeaderError
		exception *amqp.Error
	)
	var hint string
	switch {
	case err == nil:
		return nil
	case errors.As(err, &authority):
		hint = "the authority of the server's certificate is not trusted here: put its certificate into a file and add " +
			"cacertfile=<file> to the URL, or correct the file that cacertfile names"
	case errors.As(err, &host):
		hint = "the server's certificate is for another name: connect by a name that it is for, or add " +
			"server_name_indication=<that name> to the URL"
	case errors.As(err, &record):
		hint = "this port does not speak TLS: use the broker's TLS port (5671), or amqp:// on this one"
	case h.answeredTLS:
		hint = "this port speaks TLS: use amqps:// with it, or the broker's AMQP port (5672)"
	case h.encrypted && h.anonymous && errors.Is(err, net.ErrClosed):
		// The client's reader saw the end of the connection first, and closed it before the writer noticed.
		hint = certificateHint
	case !errors.As(err, &exception) || exception.Server || exception.Code != amqp.FrameError &&
		exception.Code != amqp.ChannelError:
		return err
	case h.encrypted && (h.anonymous || strings.Contains(exception.Reason, "tls: ")):
		// With TLS 1.3 the server checks the client's certificate after the handshake. Its verdict may be lost with the
		// connection that it ends.
		hint = certificateHint
	default:
		return err
	}
	return fmt.Errorf("%w: %s", err, hint)
}
