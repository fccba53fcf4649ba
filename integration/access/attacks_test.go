package access_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/internal/logbuffer"
)

// process is a running redrive serve.
type process struct {
	address string
	tls     *tls.Config // nil for plain HTTP
	log     *logbuffer.Buffer
}

var served = regexp.MustCompile(`https?://(127\.0\.0\.1:\d+)`)

// startProcess starts redrive serve, with its own certificate or without TLS.
func startProcess(t *testing.T, secure bool) *process {
	t.Helper()
	dir := t.TempDir()
	p := &process{log: &logbuffer.Buffer{}}
	config := "store: {url: \"sqlite:dead.db?synchronous=normal\"}\nserver:\n  address: 127.0.0.1:0\n  limits: {rate: " +
		"-1}\n"
	if secure {
		web := httptest.NewTLSServer(http.NotFoundHandler())
		web.Close()
		pair := web.TLS.Certificates[0]
		key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
		require.NoError(t, err)
		both := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}),
			pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "server.pem"), both, 0o600))
		config += "  tls: {certificate: server.pem, key: server.pem}\n"
		p.tls = &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "example.com", MinVersion: tls.VersionTLS12}
		p.tls.RootCAs.AddCert(web.Certificate())
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "redrive.yaml"), []byte(config), 0o600))
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), services.Program(t, "./cmd/redrive"), "serve",
		"--config", "redrive.yaml")
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, p.log, p.log
	cmd.Env = append(os.Environ(), "REDRIVE_STORE=", "REDRIVE_BROKER=")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		require.NoError(t, cmd.Wait(), p.log)
	})
	await.Progress(t, func() (int, bool) {
		log := p.log.String()
		found := served.FindStringSubmatch(log)
		if found != nil {
			p.address = found[1]
		}
		return len(log), found != nil
	}, p.log)
	return p
}

// dial connects; over TLS it speaks HTTP/1.1.
func (p *process) dial(t *testing.T) net.Conn {
	t.Helper()
	var dialer net.Dialer
	conn, err := dialer.DialContext(t.Context(), "tcp", p.address)
	require.NoError(t, err)
	require.NoError(t, conn.SetDeadline(time.Now().Add(await.Patience)))
	t.Cleanup(func() { _ = conn.Close() }) // most are already closed
	if p.tls == nil {
		return conn
	}
	return tls.Client(conn, p.tls)
}

// reply is a complete response.
type reply struct {
	status int
	header http.Header
	body   string
}

// exchange sends raw bytes, and returns all responses until the server closes the connection.
func (p *process) exchange(t *testing.T, conn net.Conn, request string) (answers []reply) {
	t.Helper()
	go func() { _, _ = io.WriteString(conn, request) }() // the server may close before it has read all
	for from := bufio.NewReader(conn); ; {
		answer, err := http.ReadResponse(from, nil)
		if err != nil {
			timeout, ok := errors.AsType[net.Error](err)
			require.False(t, ok && timeout.Timeout(), "the server did not close the connection: %v", err)
			return answers
		}
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			return answers // truncated
		}
		require.NoError(t, answer.Body.Close())
		answers = append(answers, reply{answer.StatusCode, answer.Header, string(text)})
	}
}

// ask sends a well-formed request.
func (p *process) ask(t *testing.T, path string) string {
	t.Helper()
	answers := p.exchange(t, p.dial(t), "GET "+path+" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
	require.Len(t, answers, 1)
	require.Equal(t, http.StatusOK, answers[0].status)
	return answers[0].body
}

var running = regexp.MustCompile(`(?m)^go_goroutines (\d+)$`)

func (p *process) goroutines(t *testing.T) int {
	t.Helper()
	found := running.FindStringSubmatch(p.ask(t, "/metrics"))
	require.NotNil(t, found)
	n, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	return n
}

// attack has the bytes to send, and the expected responses until the server closes the connection, which it must always
// do.
type attack struct {
	send string
	want []int
	// cut means that the response may be lost: a server that closes a connection with much unread data resets it.
	cut bool
}

// smuggled is a request that must not be answered.
const smuggled = "GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"

// request returns a request that is the last one of its connection, if it is valid.
func request(line string, rest ...string) string {
	return line + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + strings.Join(rest, "\r\n") + "\r\n\r\n"
}

// kept returns a request that keeps the connection open, if it is valid, followed by a smuggled one.
func kept(headers, body string) string {
	return "POST /livez HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n\r\n" + body + smuggled
}

func bomb() string {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write(bytes.Repeat([]byte(" "), 64<<20)) // never fails
	_ = w.Close()                                     // as above
	return packed.String()
}

func attacks() map[string]attack {
	const asJSON = "Content-Type: application/json"
	large, packed := strings.Repeat(" ", 5<<20), bomb()
	length := func(body string) string { return "Content-Length: " + strconv.Itoa(len(body)) }
	chunked := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(large), large)
	refused := []int{400}
	return map[string]attack{
		"size: 1 MiB of headers": {
			send: request("GET /livez", "X-Large: "+strings.Repeat("a", 1<<20)), want: []int{431},
			cut: true,
		},
		"size: 10,000 headers": {
			send: request("GET /api/v1/me", strings.Repeat("X-Many: 1\r\n", 10_000)+"X: 1"),
			want: []int{431}, cut: true,
		},
		"size: 50 kB of headers": {
			send: request("GET /api/v1/me", "X-Large: "+strings.Repeat("a", 50_000)),
			want: []int{431},
		},
		"size: URL of 1 MiB": {send: request("GET /" + strings.Repeat("a", 1<<20)), want: []int{431}, cut: true},
		"size: URL of 50 kB": {send: request("GET /" + strings.Repeat("a", 50_000)), want: []int{404}},
		"size: body": {
			send: request("POST /api/v1/runs", asJSON, length(large)) + large, want: []int{413},
			cut: true,
		},
		"size: body in chunks": {
			send: request("POST /api/v1/runs", asJSON, "Transfer-Encoding: chunked") + chunked,
			want: []int{413}, cut: true,
		},
		"size: form": {send: request("POST /retention", "Content-Type: application/x-www-form-urlencoded",
			length(large)) + large, want: []int{413}, cut: true},
		"size: compressed bomb": {send: request("POST /api/v1/runs", asJSON, "Content-Encoding: gzip", length(packed)) +
			packed, want: refused},
		"size: compressed import": {send: request("POST /api/v1/entries/import", "Content-Type: application/jsonl",
			"Content-Encoding: gzip", length(packed)) + packed, want: []int{422}},
		"size: compressed, in TE": {send: kept("Transfer-Encoding: gzip, chunked", packed), want: []int{501}, cut: true},
		"smuggling: CL.TE": {
			send: kept("Content-Length: 6\r\nTransfer-Encoding: chunked", "0\r\n\r\n"),
			want: []int{405},
		},
		"smuggling: TE.CL": {
			send: kept("Transfer-Encoding: chunked\r\nContent-Length: 3", "0\r\n\r\n"),
			want: []int{405},
		},
		"smuggling: two lengths":   {send: kept("Content-Length: 0\r\nContent-Length: 5", ""), want: refused},
		"smuggling: list":          {send: kept("Content-Length: 0, 5", ""), want: refused},
		"smuggling: signed length": {send: kept("Content-Length: +0", ""), want: refused},
		"smuggling: less than 0":   {send: kept("Content-Length: -1", ""), want: refused},
		"smuggling: no length":     {send: kept("Content-Length:", ""), want: refused},
		"smuggling: xchunked":      {send: kept("Transfer-Encoding: xchunked", "0\r\n\r\n"), want: []int{501}},
		"smuggling: two encodings": {
			send: kept("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", "0\r\n\r\n"),
			want: []int{501},
		},
		"smuggling: space":   {send: kept("Transfer-Encoding : chunked", "0\r\n\r\n"), want: refused},
		"smuggling: control": {send: kept("Transfer-Encoding: \x0bchunked", "0\r\n\r\n"), want: refused},
		"smuggling: folded": {
			send: kept("Transfer-Encoding:\r\n chunked\r\nContent-Length: 3", "0\r\n\r\n"),
			want: []int{405},
		},
		"smuggling: folded first": {send: "GET /livez HTTP/1.1\r\n Host: localhost\r\n\r\n" + smuggled, want: refused},
		"smuggling: bare LF": {send: "POST /livez HTTP/1.1\nHost: localhost\nContent-Length: 0\nTransfer-Encoding: " +
			"chunked\n\n0\r\n\r\n" + smuggled, want: []int{405}},
		"smuggling: bare CR":       {send: kept("X: a\rContent-Length: 5", ""), want: refused},
		"smuggling: NUL":           {send: kept("X: a\x00b", ""), want: refused},
		"smuggling: chunk ends LF": {send: kept("Transfer-Encoding: chunked", "0\n\r\n"), want: []int{405}},
		"smuggling: chunk size":    {send: kept("Transfer-Encoding: chunked", "fffffffffffffffff\r\n"), want: []int{405}},
		"smuggling: no chunk":      {send: kept("Transfer-Encoding: chunked", "x\r\n"), want: []int{405}},
		"smuggling: body of a GET": {send: "GET /livez HTTP/1.1\r\nHost: localhost\r\n" + length(smuggled) + "\r\n\r\n" +
			smuggled + request("GET /livez"), want: []int{200, 200}},
		"smuggling: HTTP/1.0 TE": {
			send: "POST /livez HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
			want: []int{405},
		},
		"form: no host, HTTP/1.0": {send: "GET /api/v1/me HTTP/1.0\r\n\r\n", want: []int{403}},
		"form: no host":           {send: "GET /livez HTTP/1.1\r\n\r\n" + smuggled, want: refused},
		"form: two hosts": {
			send: "GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n" + smuggled,
			want: refused,
		},
		"form: foreign host": {
			send: "GET /api/v1/me HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
			want: []int{403},
		},
		"form: foreign URL":        {send: request("GET http://evil.example/api/v1/me"), want: []int{403}},
		"form: CONNECT":            {send: request("CONNECT evil.example:443"), want: []int{404}},
		"form: TRACE":              {send: request("TRACE /api/v1/me", "X-Secret: 1"), want: []int{405}},
		"form: OPTIONS *":          {send: request("OPTIONS *"), want: refused},
		"form: no method":          {send: request("G@T /livez"), want: refused},
		"form: HTTP/0.9":           {send: "GET /livez\r\n\r\n" + smuggled, want: refused},
		"form: path up":            {send: request("GET /static/../../../../etc/passwd"), want: []int{307}},
		"form: CRLF in a redirect": {send: request("GET /api//v1/%0d%0aX-Evil:%20yes"), want: []int{307}},
		"form: foreign redirect":   {send: request("GET //evil.example/.."), want: []int{307}},
		"form: pipelined": {send: strings.Repeat("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", 20) +
			request("GET /livez"), want: repeated(200, 21)},
	}
}

func repeated(status, n int) (list []int) {
	for range n {
		list = append(list, status)
	}
	return list
}

// TestAttacks attacks the HTTP server of redrive serve over raw connections, with and without TLS: each request gets
// the right response, a request smuggled in behind it gets none, the connection is closed, no other client is affected,
// and nothing leaks. How long the server waits for slow clients is tested in virtual time.
func TestAttacks(t *testing.T) {
	t.Parallel()
	for _, p := range []*process{startProcess(t, false), startProcess(t, true)} {
		t.Run(map[bool]string{false: "HTTP", true: "HTTPS"}[p.tls != nil], func(t *testing.T) {
			t.Parallel()
			before := p.goroutines(t)
			release := p.occupy(t)
			for name, a := range attacks() {
				t.Run(name, func(t *testing.T) {
					a.check(t, p.tls != nil, p.exchange(t, p.dial(t), a.send))
					require.Contains(t, p.ask(t, "/livez"), "ok")
				})
			}
			release()
			await.True(t, func() bool { return p.goroutines(t) <= before+5 }, "goroutines are left")
			require.NotContains(t, p.log.String(), "panic")
		})
	}
}

func (a *attack) check(t *testing.T, secure bool, answers []reply) {
	t.Helper()
	var got []int
	for _, answer := range answers {
		got = append(got, answer.status)
		require.Empty(t, answer.header.Get("X-Evil"))
		require.NotContains(t, answer.header.Get("Location"), "//")
		if answer.header.Get("X-Content-Type-Options") != "" { // our handler's, not that of net/http
			require.Equal(t, secure, answer.header.Get("Strict-Transport-Security") != "")
		}
		require.NotContains(t, answer.body, "/smuggled")
	}
	if len(got) > 0 || !a.cut {
		require.Equal(t, a.want, got)
	}
}

// occupy connects slow clients: some send part of a header, and are closed while the test runs, some send part of a
// body, and some never read. release waits for the first kind, and closes the others.
func (p *process) occupy(t *testing.T) (release func()) {
	t.Helper()
	var headers, rest sync.WaitGroup
	var open []net.Conn
	for range 10 {
		for _, begun := range []string{"", "GET /livez HTTP/1.1\r\nHost: local"} { // "" over TLS is not a handshake either
			conn := p.dial(t)
			if begun == "" {
				if over, ok := conn.(*tls.Conn); ok {
					conn = over.NetConn()
				}
			}
			headers.Go(func() {
				_, _ = io.WriteString(conn, begun)  // the read below shows the result
				_, err := io.Copy(io.Discard, conn) // the server closes it
				if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
					t.Errorf("%q keeps the connection open: %v", begun, err)
				}
			})
		}
		const body = "POST /retention HTTP/1.1\r\nHost: localhost\r\nContent-Type: " +
			"application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\na="
		for _, text := range []string{body, strings.Repeat("GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n",
			1000)} {
			conn := p.dial(t)
			open = append(open, conn)
			rest.Go(func() { _, _ = io.WriteString(conn, text) }) // until it is closed
		}
	}
	return func() {
		headers.Wait()
		for _, conn := range open {
			_ = conn.Close() // a TLS connection cannot send its close_notify to a peer that does not read
		}
		rest.Wait()
	}
}

// The HTTPS port accepts only HTTPS, and no old version of TLS.
func TestAttacks_TLS(t *testing.T) {
	t.Parallel()
	p := startProcess(t, true)
	plain := *p
	plain.tls = nil
	answers := plain.exchange(t, plain.dial(t), request("GET /livez"))
	require.Len(t, answers, 1)
	require.Equal(t, http.StatusBadRequest, answers[0].status)
	old := *p
	old.tls = p.tls.Clone()
	old.tls.MinVersion, old.tls.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 // must be refused
	_, err := io.WriteString(old.dial(t), request("GET /livez"))
	require.ErrorContains(t, err, "protocol version")
	require.Contains(t, p.ask(t, "/livez"), "ok")
}
