package rabbitmq_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// withQuery adds parameters, alternately name and value, to a URL.
func withQuery(t *testing.T, rawURL string, nameValues ...string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	require.NoError(t, err)
	query := u.Query()
	for i := 0; i < len(nameValues); i += 2 {
		query.Set(nameValues[i], nameValues[i+1])
	}
	u.RawQuery = query.Encode()
	return u.String()
}

// inVHost puts the virtual host of another URL into rawURL.
func inVHost(t *testing.T, rawURL, other string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	require.NoError(t, err)
	u.Path = "/" + vhostOf(t, other)
	return u.String()
}

// With amqps:// and certificates on both sides, none of them from the system's authorities, messages larger than a TLS
// record work, and closing flushes everything. Every misconfiguration causes an error with the remedy and without the
// password.
func TestTLS(t *testing.T) {
	t.Parallel()
	r := borrowSecond(t, false)
	plainURL := r.VHost(t)
	secure := inVHost(t, r.TLSURL, plainURL)
	mine := withQuery(t, secure, "certfile", r.Certificates.ClientCert, "keyfile", r.Certificates.ClientKey)
	b := openBroker(t, withQuery(t, mine, "cacertfile", r.Certificates.CA), naming(brokers.Laravel()),
		params("grid", "false"))
	s := serve(t, b, "orders", middleware.Laravel(2), fails)
	big := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB
	require.NoError(t, b.Publisher().Publish("orders", newMessage(big), newMessage("small")))
	for range 4 {
		s.next()
	}
	p := dialPlain(t, plainURL)
	sizes := []int{len(p.next("orders_dlq").Body), len(p.next("orders_dlq").Body)}
	require.ElementsMatch(t, []int{len(big), len("small")}, sizes)
	s.stop()
	require.NoError(t, b.Close())
	require.Zero(t, p.depth("orders"), "the last ack has arrived")

	stranger, err := services.NewCertificates(t.TempDir())
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		url  string
		says []string
	}{
		"one of the system's authorities": {mine, []string{"unknown authority", "cacertfile="}},
		"the wrong authority": {
			withQuery(t, mine, "cacertfile", stranger.CA),
			[]string{"unknown authority", "correct the file that cacertfile names"},
		},
		"a missing file": {withQuery(t, mine, "cacertfile", "/nowhere/ca.pem"), []string{"/nowhere/ca.pem"}},
		"a name that is not in the certificate": {
			withQuery(t, mine, "cacertfile", r.Certificates.CA, "server_name_indication", "rabbit.example.com"),
			[]string{"rabbit.example.com", "server_name_indication="},
		},
		"no client certificate": {
			withQuery(t, secure, "cacertfile", r.Certificates.CA),
			[]string{"certfile=", "keyfile="},
		},
		"a port without TLS": {
			strings.Replace(r.URL, "amqp:", "amqps:", 1),
			[]string{"does not speak TLS", "amqp://"},
		},
		"TLS parameters without TLS": {strings.Replace(r.TLSURL, "amqps:", "amqp:", 1), []string{"amqps://"}},
	} {
		_, err := brokers.Open(t.Context(), tc.url)
		require.Error(t, err, name)
		for _, text := range tc.says {
			require.ErrorContains(t, err, text, name)
		}
		require.NotContains(t, err.Error(), "guest:guest", name)
	}
}
