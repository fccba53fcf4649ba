package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// certificate writes the certificate and the key of httptest, for 127.0.0.1, and returns a pool that trusts it.
func certificate(t *testing.T) *x509.CertPool {
	t.Helper()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	pair := server.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile("server.pem",
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}), 0o600))
	require.NoError(t, os.WriteFile("server.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return roots
}

// With server.tls the server speaks only HTTPS: a client that trusts its certificate gets an answer, the command
// included, another one does not, and an old version of TLS or plain HTTP gets no page.
func TestServe_TLS(t *testing.T) {
	hermetic(t)
	t.Chdir(t.TempDir())
	roots := certificate(t)
	seed(t, "dead.db")
	require.NoError(t, os.WriteFile("redrive.yaml", fmt.Appendf(nil, `
store: {url: "sqlite:dead.db?synchronous=normal"}
server: {address: %q, tls: {certificate: server.pem, key: server.key}}
`, anyPort), 0o600))
	_, stderr, _ := start(t, "serve", "--config", "redrive.yaml")
	url := served(t, stderr)
	require.True(t, strings.HasPrefix(url, "https://"), url)
	ask := func(url string, config *tls.Config) (int, error) {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		require.NoError(t, err)
		response, err := client.Do(request)
		if err != nil {
			return 0, err
		}
		defer func() { require.NoError(t, response.Body.Close()) }()
		_, err = io.Copy(io.Discard, response.Body)
		return response.StatusCode, err
	}
	status, err := ask(url+"/", &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12})
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status)

	_, err = ask(url+"/livez", &tls.Config{MinVersion: tls.VersionTLS12})
	var unknown *tls.CertificateVerificationError
	require.ErrorAs(t, err, &unknown)
	// it must be refused
	_, err = ask(url+"/livez",
		&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	require.ErrorContains(t, err, "protocol version")
	status, err = ask(strings.Replace(url, "https", "http", 1)+"/livez", nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, status)

	require.NoError(t, os.WriteFile("profiles.yaml",
		fmt.Appendf(nil, "profiles:\n  prod: {server: %q, ca: server.pem}\n  without-ca: {server: %[1]q}\n"+
			"  other-name: {server: %q, ca: server.pem}\n", url, strings.Replace(url, "127.0.0.1", "localhost", 1)),
		0o600))
	t.Setenv("REDRIVE_PROFILES", "profiles.yaml")
	code, out, faults := command(t, "dlq", "groups", "--profile", "prod")
	require.Zero(t, code, faults)
	require.Contains(t, out, "bank: timeout")
	code, _, faults = command(t, "dlq", "groups", "--profile", "without-ca")
	require.NotZero(t, code)
	require.Contains(t, faults, "certificate")
	require.Contains(t, faults, "as ca of a profile")
	code, _, faults = command(t, "dlq", "groups", "--profile", "other-name")
	require.NotZero(t, code)
	require.Contains(t, faults, "not localhost")
	require.NotContains(t, faults, "as ca of a profile", "its authority is known")
}

// A certificate that cannot be read ends the start, before anything runs, and is found by config validate.
func TestServe_TLSFaults(t *testing.T) {
	hermetic(t)
	t.Chdir(t.TempDir())
	certificate(t)
	require.NoError(t, os.WriteFile("other.key", []byte("no key"), 0o600))
	for _, key := range []string{"gone.key", "other.key"} {
		require.NoError(t, os.WriteFile("redrive.yaml", fmt.Appendf(nil, `
store: {url: "sqlite:dead.db?synchronous=normal"}
server: {address: %q, tls: {certificate: server.pem, key: %q}}
`, anyPort, key), 0o600))
		for _, args := range [][]string{{"serve"}, {"config", "validate"}} {
			code, _, faults := command(t, args...)
			require.Equal(t, exitError, code, faults)
			require.Contains(t, faults, "redrive: server.tls: ", args)
			require.NotContains(t, faults, "serving")
		}
	}
}
