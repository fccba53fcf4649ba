package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/logbuffer"
)

// closedPort is the address of a server that is down.
func closedPort(t *testing.T) *net.TCPAddr {
	t.Helper()
	var listen net.ListenConfig
	listener, err := listen.Listen(t.Context(), "tcp", anyPort)
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	return listener.Addr().(*net.TCPAddr)
}

// A server whose Kafka is down when it starts works with its other broker, reports which one is missing, and refuses
// redrives to it without a loss. When Kafka is up it collects and redrives there.
func TestServe_BrokerDown(t *testing.T) {
	hermetic(t)
	address := closedPort(t)
	dir := t.TempDir()
	store, queue := "sqlite:"+filepath.Join(dir, "dead.db"), "sqlite:"+filepath.Join(dir, "queue.db")
	seedQueue(t, filepath.Join(dir, "queue.db"))
	file := filepath.Join(dir, "redrive.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `
store: {url: "%s?synchronous=normal"}
brokers: {queue: {url: %q}, kafka: {url: "kafka://%s"}}
collector: {sources: [{broker: kafka, topic: orders_dlq}]}
server: {address: %q}
`, store, queue, address, anyPort), 0o600))
	letters, err := dlq.Open(t.Context(), store, dlq.WithoutSpool())
	require.NoError(t, err)
	for _, scheme := range []string{"kafka", "sqlite"} {
		require.NoError(t, letters.DeadLetter(t.Context(), &envelope.DeadLetter{
			Message: message.NewMessage(scheme, []byte("{}")), Reason: envelope.ReasonExhausted,
			Err: envelope.Error{Message: "timeout"}, At: time.Now(), Attempts: 4,
			Origin: envelope.Origin{Broker: scheme, Topic: "orders", Consumer: "billing"},
		}))
	}
	t.Cleanup(func() { require.NoError(t, letters.Close()) })

	_, stderr, stop := start(t, "serve", "--config", file)
	url := served(t, stderr)
	require.Contains(t, stderr.String(), `level=ERROR msg="a broker is not reachable; it is tried again" broker=kafka`)
	for path, want := range map[string]string{
		"/livez":   "ok",
		"/readyz":  `"broker kafka":{"status":"failing","error":"broker kafka is not reachable yet: `,
		"/metrics": `redrive_broker_up{broker="kafka"} 0`,
		"/":        "<html",
	} {
		require.Eventually(t, func() bool {
			_, body := get(t, url+path)
			return strings.Contains(body, want)
		}, 2*time.Minute, 20*time.Millisecond, "%s: %s", path, want)
	}
	_, body := get(t, url+"/readyz")
	require.Contains(t, body, `"broker queue":{"status":"ok"}`)
	_, body = get(t, url+"/metrics")
	require.Contains(t, body, `redrive_broker_up{broker="queue"} 1`)
	require.Contains(t, body, `redrive_collector_failing{broker="kafka",source="orders_dlq"} 1`)

	redriven := func(id string) (int, string) {
		code, _, faults := command(t, "dlq", "redrive", id, "--server", url)
		return code, faults
	}
	const warning = "a redrive would fail: broker kafka is not reachable yet: "
	for id, warned := range map[string]bool{"1": true, "2": false} {
		code, out, faults := command(t, "dlq", "redrive", id, "--dry-run", "--server", url)
		require.Equal(t, exitOK, code, faults)
		require.Equal(t, warned, strings.Contains(faults, "warning: "+warning), out+faults)
		_, body = get(t, url+"/runs/new?do=preview&id="+id)
		require.Equal(t, warned, strings.Contains(body, warning), body)
	}
	code, faults := redriven("1")
	require.Equal(t, exitError, code, faults)
	require.Contains(t, faults, "broker kafka is not reachable yet: ")
	require.Contains(t, faults, "it is tried again at least every 30s")
	entry, err := letters.Store().Get(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, dlq.Pending, entry.Status)
	code, faults = redriven("2")
	require.Equal(t, exitOK, code, faults)

	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(address.Port), kfake.DefaultNumPartitions(1),
		kfake.SeedTopics(1, "orders"))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	service, err := brokers.Open(t.Context(), "kafka://"+address.String()+"?group=billing&publish-timeout=1m")
	require.NoError(t, err)
	defer func() { require.NoError(t, service.Close()) }()
	require.NoError(t, service.Publisher().Publish("orders_dlq", message.NewMessage("dead", []byte("{}"))))
	consumed, err := service.Subscriber().Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, body := get(t, url+"/readyz")
		return strings.Contains(body, `"status":"ok","components"`) && strings.Contains(body, `"collected":1`)
	}, 2*time.Minute, 20*time.Millisecond, stderr)
	require.Contains(t, stderr.String(), "the broker is reachable")
	code, faults = redriven("1")
	require.Equal(t, exitOK, code, faults)
	select {
	case m := <-consumed:
		require.Equal(t, "kafka", m.UUID)
		m.Ack()
	case <-time.After(2 * time.Minute):
		require.Fail(t, "not redriven", stderr)
	}
	require.Equal(t, exitOK, stop(), stderr)
}

// A command opens only the brokers that it needs, and a redrive to one that is down fails for its entries alone.
func TestRedrive_OtherBrokerDown(t *testing.T) {
	hermetic(t)
	dir := t.TempDir()
	store, queue := filepath.Join(dir, "dead.db"), filepath.Join(dir, "queue.db")
	seed(t, store)
	seedQueue(t, queue)
	letters, err := dlq.Open(t.Context(), "sqlite:"+store, dlq.WithoutSpool())
	require.NoError(t, err)
	require.NoError(t, letters.DeadLetter(t.Context(), &envelope.DeadLetter{
		Message: message.NewMessage("amqp", []byte("{}")), Reason: envelope.ReasonExhausted, At: time.Now(), Attempts: 4,
		Err: envelope.Error{Message: "timeout"}, Origin: envelope.Origin{Broker: "amqp", Topic: "mails", Consumer: "mails"},
	}))
	require.NoError(t, letters.Close())
	down := "amqp://user:s3cret@" + closedPort(t).String() + "/"
	for _, c := range []struct {
		args, want string
		code       int
	}{
		{"1 --dry-run", "", exitOK},
		{"6 --dry-run", "warning: a redrive would fail: broker amqp: ", exitOK},
		{"--topic mails --dry-run", "open amqp://user:xxxxx@", exitOK},
		{"1", "", exitOK},
		{"6", "broker amqp: open amqp://user:xxxxx@", exitError},
		{"--topic mails --yes", "the run has stopped: entry 6: not published: broker amqp: ", exitPartial},
		{"6 2", "broker amqp: open amqp://user:xxxxx@", exitPartial},
	} {
		args := append([]string{"dlq", "redrive"}, strings.Fields(c.args)...)
		code, out, faults := command(t, append(args, "--store", store, "--broker", "sqlite:"+queue, "--broker", down)...)
		require.Equal(t, c.code, code, "%s: %s", c.args, faults)
		faults += out
		require.Contains(t, faults, c.want, c.args)
		require.Equal(t, c.want != "", strings.Contains(faults, "amqp"), c.args)
	}
}

// newLate makes a lateBroker whose attempts open makes.
func newLate(t *testing.T, server bool, open func(ctx context.Context) (brokers.Broker, error),
) (*lateBroker, *logbuffer.Buffer) {
	t.Helper()
	log := &logbuffer.Buffer{}
	b := &lateBroker{
		name: "rabbit", server: server, logger: slog.New(slog.NewTextHandler(log, nil)), open: open,
		tried: make(chan struct{}),
	}
	b.ctx, b.cancel = context.WithCancelCause(t.Context())
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b, log
}

var errRefused = &net.OpError{Op: "dial", Err: errors.New("connection refused")}

// A server tries again with growing pauses until the broker is open, whatever the later faults are. Until then every
// call fails at once.
func TestLateBroker_Server(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, err := memory.New(brokers.Config{Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		var tries []time.Duration
		began := time.Now()
		b, log := newLate(t, true, func(ctx context.Context) (brokers.Broker, error) {
			tries = append(tries, time.Since(began))
			switch len(tries) {
			case 8:
				return inner, nil
			case 3:
				return nil, errors.New("wrong password") // after the start it may be corrected in the broker
			case 4:
				<-ctx.Done() // a server that accepts connections and says nothing
				return nil, context.Cause(ctx)
			}
			return nil, errRefused
		})
		require.NoError(t, reach(t.Context(), map[string]brokers.Broker{"rabbit": b}))
		origin := envelope.Origin{Topic: "orders", Consumer: "billing"}
		m := message.NewMessage("1", nil)
		calls := map[string]func() error{
			"ping":       func() error { return b.Ping(t.Context()) },
			"reschedule": func() error { return b.Reschedule(t.Context(), origin, m.Copy(), 0) },
			"batch": func() error {
				return errors.Join(b.RescheduleAll(t.Context(), []envelope.Origin{origin}, []*message.Message{m.Copy()})...)
			},
			"dead letter": func() error {
				return b.DeadLetter(t.Context(), &envelope.DeadLetter{Message: m, Origin: origin})
			},
			"publish": func() error { return b.Publisher().Publish("orders", m.Copy()) },
			"depths": func() error {
				_, err := b.Depths(t.Context())
				return err
			},
			"subscribe": func() error {
				_, err := b.Subscriber().Subscribe(t.Context(), "orders")
				return err
			},
		}
		for name, call := range calls {
			require.EqualError(t, call(), "broker rabbit is not reachable yet: dial: connection refused; it is tried again "+
				"at least every 30s", name)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for range 64 { // select chooses at random between two channels that are ready
			require.ErrorContains(t, b.Ping(ended), "not reachable yet: dial: connection refused", "of the broker, not the call")
		}
		require.Nil(t, b.Unwrap())
		require.Zero(t, b.Capabilities())
		require.Zero(t, time.Since(began))

		<-time.After(time.Hour)
		synctest.Wait()
		seconds := []time.Duration{0, 1, 3, 7, 75, 91, 121, 151}
		for i := range seconds {
			seconds[i] *= time.Second
		}
		require.Equal(t, seconds, tries)
		require.Equal(t, 7, strings.Count(log.String(), "level=ERROR"))
		for name, call := range calls {
			require.NoError(t, call(), name)
		}
		require.Equal(t, inner.Capabilities(), b.Capabilities())
	})
}

// The start of a server waits for each broker, but not without end, and is refused only for what a person has to
// correct.
func TestLateBroker_Reach(t *testing.T) {
	for name, test := range map[string]struct {
		open    func(ctx context.Context) (brokers.Broker, error)
		refused string
		waits   time.Duration
	}{
		"down":  {open: func(context.Context) (brokers.Broker, error) { return nil, errRefused }},
		"wrong": {func(context.Context) (brokers.Broker, error) { return nil, errors.New("wrong") }, "broker x: wrong", 0},
		"silent": {func(ctx context.Context) (brokers.Broker, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}, "", reachTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				b, log := newLate(t, true, test.open)
				err := reach(t.Context(), map[string]brokers.Broker{"x": b})
				require.Equal(t, test.waits, time.Since(began))
				if test.refused != "" {
					require.EqualError(t, err, test.refused)
					require.Empty(t, log.String())
					return
				}
				require.NoError(t, err)
				err = b.Ping(t.Context())
				require.ErrorContains(t, err, "not reachable yet")
				require.NotErrorIs(t, err, context.DeadlineExceeded, "it is no call that may have had an effect")
				require.Equal(t, test.waits, time.Since(began), "calls do not wait")
			})
		})
	}
}

// A command makes one attempt, which outlives the call that began it, and whose failure is the answer to every call.
func TestLateBroker_Command(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		b, log := newLate(t, false, func(context.Context) (brokers.Broker, error) {
			tries++
			<-time.After(3 * time.Second)
			return nil, errRefused
		})
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.EqualError(t, b.Ping(short), "broker rabbit: context deadline exceeded")
		for range 2 {
			require.EqualError(t, b.Ping(t.Context()), "broker rabbit: dial: connection refused")
		}
		require.Equal(t, 1, tries)
		require.Empty(t, log.String())

		frozen, _ := newLate(t, false, func(ctx context.Context) (brokers.Broker, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})
		_, err := frozen.Readers(short, envelope.Origin{Topic: "orders"})
		require.ErrorContains(t, err, "broker rabbit: ")
		require.NotErrorIs(t, err, redrive.ErrUnreachable, "it may only be slow")

		unused, _ := newLate(t, false, nil)
		require.NoError(t, unused.Close())
		require.ErrorIs(t, unused.Ping(t.Context()), brokers.ErrClosed)
	})
}

// What every driver reports about a server that is down, silent or restarting differs from a wrong configuration.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	silent, ending := httptest.NewUnstartedServer(nil).Listener, httptest.NewUnstartedServer(nil).Listener
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	t.Cleanup(func() {
		require.NoError(t, errors.Join(silent.Close(), ending.Close()))
		secure.Close()
	})
	go func() {
		for {
			conn, err := ending.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1)) // what is not read resets the connection
			_ = conn.Close()
		}
	}()
	down, tls := closedPort(t).String(), secure.Listener.Addr().String()
	cases := map[string]bool{
		"amqp://" + down + "/?x-delivery-limit=1":                 false,
		"amqps://" + down + "/?cacertfile=none.pem":               true, // which is read when a server answers
		"amqps://" + tls + "/?cacertfile=none.pem":                false,
		"amqps://" + tls + "/":                                    false,
		"amqp://" + tls + "/":                                     true, // it only ends the connection
		"kafka://" + down + "?x-tls=true&x-tls-ca=none.pem":       false,
		"kafka://" + tls + "?x-tls=true":                          false,
		"kafka://" + down + "/topic":                              false,
		"nats://" + down + "?x-max-age=1m":                        false,
		"nats+tls://" + down + "?x-tls-ca=none.pem":               false,
		"postgres://" + down + "/d?sslrootcert=none.pem":          false,
		"kafka://" + down + "?x-nonsense=1":                       false,
		"kafkaa://" + down:                                        false,
		"sqlite:" + filepath.Join(t.TempDir(), "missing", "q.db"): false,
		"watermill+kafka://" + down + "/topic":                    false,
		"amqp://no-such-host.invalid/":                            true,
	}
	for _, url := range []string{
		"amqp://u:p@%s/", "amqps://u:p@%s/", "kafka://%s", "nats://%s", "postgres://u:p@%s/d?sslmode=disable",
		"mysql://u:p@%s/d", "watermill+amqp://u:p@%s/", "watermill+kafka://%s",
		"watermill+postgres://u:p@%s/d?sslmode=disable", "watermill+mysql://u:p@%s/d",
	} {
		for _, address := range []string{down, silent.Addr().String(), ending.Addr().String()} {
			cases[fmt.Sprintf(url, address)] = true
		}
	}
	for url, want := range cases {
		t.Run(url, func(t *testing.T) {
			t.Parallel()
			patience := 2 * time.Minute // for a handshake, or for reading a file
			if want {
				patience = time.Second // a server that has not answered by then is unreachable, too
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, err := brokers.OpenConfig(ctx, brokers.Config{
				URL: url, Name: "test", Group: "g", Logger: slog.New(slog.DiscardHandler),
			})
			require.Error(t, err)
			require.Equal(t, want, unreachable(err), "%v", err)
		})
	}
	require.True(t, unreachable(io.EOF))
	require.False(t, unreachable(&net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}))
}
