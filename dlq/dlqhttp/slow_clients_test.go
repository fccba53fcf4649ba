package dlqhttp_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
)

// pipes is a listener with unbuffered connections, in virtual time: a client that does not read blocks the server.
type pipes struct {
	accepted chan net.Conn
	close    sync.Once
	closed   chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accepted:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.close.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	p.accepted <- server
	return client, nil
}

// slow runs test in virtual time, with a server of six dead letters of a size, and a client that speaks HTTP/2 with it
// or HTTP/1.1.
func slow(t *testing.T, secure bool, size int, test func(*testing.T, *server, *pipes, *http.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newConfigured(t, nil, func(c *dlqhttp.Config) { c.Limits.Timeout = 5 * time.Minute })
		for range 6 {
			m := message.NewMessage("", []byte(strings.Repeat("x", size)))
			_, err := s.letters.Store().Put(t.Context(), dlq.NewEntry(&envelope.DeadLetter{
				Message: m, Reason: envelope.ReasonExhausted, Origin: envelope.Origin{Topic: "orders", Consumer: "billing"},
				At: time.Now(),
			}))
			require.NoError(t, err)
		}
		var err error
		s.handler, err = dlqhttp.New(s.cfg)
		require.NoError(t, err)
		p := &pipes{accepted: make(chan net.Conn), closed: make(chan struct{})}
		web := httptest.Server{
			Listener: p, EnableHTTP2: true,
			Config: &http.Server{Handler: s.handler, IdleTimeout: 2 * time.Minute},
		}
		transport := &http.Transport{DialContext: p.dial, ForceAttemptHTTP2: true}
		s.url = "http://localhost"
		if secure {
			web.StartTLS()
			roots := x509.NewCertPool()
			roots.AddCert(web.Certificate())
			transport.TLSClientConfig = &tls.Config{RootCAs: roots, ServerName: "example.com", MinVersion: tls.VersionTLS12}
			s.url = "https://localhost"
		} else {
			web.Start()
		}
		defer web.Close()
		defer transport.CloseIdleConnections()
		defer s.handler.EndStreams() // for which Close would wait
		test(t, s, p, &http.Client{Transport: transport})
	})
}

// A client that begins a body and does not finish it is answered, and its connection closed, on every kind of route.
func TestSlowClients_Body(t *testing.T) {
	const form = "Content-Type: application/x-www-form-urlencoded\r\n"
	for name, request := range map[string]string{
		"a route without a body": "GET /livez HTTP/1.1\r\n",
		"a change without one":   "POST /api/v1/entries/1/discard HTTP/1.1\r\n",
		"a change with a key":    "POST /api/v1/entries/1/discard HTTP/1.1\r\nIdempotency-Key: a\r\n",
		"a change with a body":   "POST /api/v1/runs HTTP/1.1\r\nContent-Type: application/json\r\n",
		"an import":              "POST /api/v1/entries/import HTTP/1.1\r\nContent-Type: application/jsonl\r\n",
		"a form":                 "POST /retention HTTP/1.1\r\n" + form,
		"nothing that is served": "POST /nothing HTTP/1.1\r\n",
	} {
		for kind, length := range map[string]string{
			"":          "Content-Length: 100\r\n\r\n{",
			", chunked": "Transfer-Encoding: chunked\r\n\r\n10\r\n{",
		} {
			t.Run(name+kind, func(t *testing.T) {
				slow(t, false, 1, func(t *testing.T, _ *server, p *pipes, _ *http.Client) {
					t.Helper()
					conn, err := p.dial(t.Context(), "", "")
					require.NoError(t, err)
					began := time.Now()
					_, err = io.WriteString(conn, request+"Host: localhost\r\n"+length)
					require.NoError(t, err)
					answer, err := io.ReadAll(conn)
					require.NoError(t, err, "closed behind the answer")
					require.Less(t, time.Since(began), time.Minute, string(answer))
					require.NotContains(t, string(answer), "HTTP/1.1 5")
				})
			})
		}
	}
}

// Large bodies are in memory until the request is answered: one caller has few of them at the same time, on any kind of
// route that reads one, however slowly they arrive.
func TestLargeBodies_AreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := unserved(t, func(c *dlqhttp.Config) { c.Auth = bearer(t) })
		s.seed(t, 1)
		ask := func(role, path string, body io.Reader) *httptest.ResponseRecorder {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, body)
			r.Header.Set("Authorization", as(role)[1])
			r.Header.Set("Content-Type", "application/json")
			switch {
			case strings.HasSuffix(path, "/import"):
				r.Header.Set("Content-Type", "application/jsonl")
			case !strings.HasPrefix(path, "/api"):
				r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			}
			r.Header.Set("Idempotency-Key", fmt.Sprint(path, time.Now().UnixNano()))
			w := httptest.NewRecorder()
			s.handler.ServeHTTP(w, r)
			return w
		}
		answers := make(chan int, 10)
		var ends []*io.PipeWriter
		begin := func(role, path string) {
			body, w := io.Pipe()
			ends = append(ends, w)
			go func() { answers <- ask(role, path, body).Code }()
			synctest.Wait()
		}
		discard := "/api/v1/entries/1/discard"
		for _, path := range []string{discard, "/api/v1/runs/preview", "/entries/1", "/entries/act"} {
			begin("admin", path)
		}
		large := `{"note":"` + strings.Repeat("x", 20_000) + `"}`
		for _, path := range []string{discard, "/entries/1", "/entries/import", "/x/api/v1/entries/import"} {
			began := time.Now()
			a := ask("admin", path, strings.NewReader(large))
			require.Equal(t, http.StatusTooManyRequests, a.Code, a.Body)
			require.Contains(t, a.Body.String(), "4 of your requests with large bodies are running")
			require.NotEmpty(t, a.Header().Get("Retry-After"))
			require.Equal(t, 10*time.Second, time.Since(began))
		}
		require.Equal(t, http.StatusOK, ask("admin", discard, strings.NewReader("{}")).Code)
		begin("admin", "/api/v1/entries/import") // which keeps none of its parts
		begin("bo", discard)
		begin("admin", "/api/v1/entries/1/restore")
		require.Empty(t, answers)
		for _, w := range ends {
			require.NoError(t, w.Close())
		}
		for range ends {
			<-answers
		}
		require.Equal(t, http.StatusUnprocessableEntity, ask("admin", discard, strings.NewReader(large)).Code, "a long note")
	})
}

// A client that does not read its answer is disconnected, on HTTP/1.1 and on HTTP/2, where the stream blocks and not
// the connection.
func TestSlowClients_Answer(t *testing.T) {
	for name, secure := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			slow(t, secure, 1<<20, func(t *testing.T, s *server, _ *pipes, client *http.Client) {
				t.Helper()
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/api/v1/entries/export", nil)
				require.NoError(t, err)
				response, err := client.Do(r)
				require.NoError(t, err)
				require.Equal(t, name == "HTTP/2", response.ProtoMajor == 2)
				require.Equal(t, http.StatusOK, response.StatusCode)
				time.Sleep(time.Minute) // virtual
				_, err = io.Copy(io.Discard, response.Body)
				require.Error(t, err, "not an export that ends as if it were complete")
				require.NoError(t, response.Body.Close())
			})
		})
	}
}

// A slow client that makes progress is served: an import in parts, an answer that is read in parts, a stream on which
// nothing happens, a change that takes longer than its body may.
func TestSlowClients_Patience(t *testing.T) {
	for name, secure := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			slow(t, secure, 1<<20, func(t *testing.T, s *server, _ *pipes, client *http.Client) {
				t.Helper()
				ask := func(method, path string, body io.Reader, header ...string) io.Reader {
					r, err := http.NewRequestWithContext(t.Context(), method, s.url+"/api/v1"+path, body)
					require.NoError(t, err)
					for i := 0; i < len(header); i += 2 {
						r.Header.Set(header[i], header[i+1])
					}
					response, err := client.Do(r)
					require.NoError(t, err)
					require.Less(t, response.StatusCode, 300)
					t.Cleanup(func() { require.NoError(t, response.Body.Close()) })
					return response.Body
				}
				exported := readSlowly(t, ask(http.MethodGet, "/entries/export", nil))
				require.Equal(t, 6, strings.Count(exported, "\n"))

				body, w := io.Pipe()
				go func() {
					for line := range strings.Lines(exported) {
						time.Sleep(20 * time.Second)   // virtual
						_, _ = io.WriteString(w, line) // the import reports the fault
					}
					_ = w.Close() // never fails
				}()
				imported, err := io.ReadAll(ask(http.MethodPost, "/entries/import", body, "Content-Type", "application/jsonl"))
				require.NoError(t, err)
				require.Contains(t, string(imported), `"seen":6`)

				s.sent.hold = func() { time.Sleep(2 * time.Minute) } // virtual
				ask(http.MethodPost, "/entries/1/redrive", strings.NewReader("{}"), "Content-Type", "application/json",
					"Idempotency-Key", "a")

				_, err = s.runner.StartRun(t.Context(), redrive.Spec{ID: "slow", Filter: dlq.Filter{Topic: "orders"}, Paused: true},
					dlq.By{Actor: "ana"})
				require.NoError(t, err)
				began, silent := time.Now(), 0
				events := bufio.NewScanner(ask(http.MethodGet, "/runs/slow/events", nil))
				for events.Scan() {
					require.NotEqual(t, "event: end", events.Text())
					if events.Text() == ": still here" {
						silent++
					}
				}
				require.NoError(t, events.Err())
				require.Greater(t, silent, 4)
				require.Equal(t, 5*time.Minute, time.Since(began), "then it proves again who it is")
			})
		})
	}
}

// readSlowly reads everything in parts, with pauses.
func readSlowly(t *testing.T, from io.Reader) string {
	t.Helper()
	var text strings.Builder
	for {
		_, err := io.CopyN(&text, from, 1<<20)
		if errors.Is(err, io.EOF) {
			return text.String()
		}
		require.NoError(t, err, fmt.Sprint(text.Len(), " bytes so far"))
		time.Sleep(20 * time.Second) // virtual
	}
}
