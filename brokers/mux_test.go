package brokers_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

func TestOpen_ByURL(t *testing.T) {
	b, err := brokers.Open(t.Context(), "mem://?group=billing&x-concurrency=4")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })

	require.NoError(t, b.Ping(t.Context()))
	require.Equal(t, "mem", b.Capabilities().Scheme)
	require.False(t, b.Capabilities().Ordered, "four concurrent handlers do not preserve order")
	require.Contains(t, brokers.Schemes(), "mem")
}

func TestOpen_UnknownScheme(t *testing.T) {
	var mux brokers.Mux
	mux.Register("mem", memory.Driver{})

	for url, want := range map[string]string{
		"kafka://b1:9092":       `brokers: unknown broker scheme "kafka": registered are: mem; forgotten import? try _ "github.com/redrive-go/redrive/brokers/kafka"`,
		"amqps://u:hush@h:5671": `brokers: unknown broker scheme "amqps": registered are: mem; forgotten import? try _ "github.com/redrive-go/redrive/brokers/rabbitmq"`,
		"postgres://u:hush@h/d": `brokers: unknown broker scheme "postgres": registered are: mem; forgotten import? try _ "github.com/redrive-go/redrive/brokers/sqlqueue"`,
		"kafak://b1:9092":       `brokers: unknown broker scheme "kafak": registered are: mem; did you mean kafka?`,
		"localhost:5672":        `brokers: unknown broker scheme "localhost": registered are: mem; a broker URL looks like amqp://host:5672/`,
	} {
		t.Run(url, func(t *testing.T) {
			_, err := mux.Open(t.Context(), url)
			require.EqualError(t, err, want)
			require.ErrorIs(t, err, brokers.ErrUnknownScheme)
		})
	}

	_, err := new(brokers.Mux).Open(t.Context(), "mem://")
	require.ErrorContains(t, err, "registered are: none; forgotten import?")
}

func TestRegister_PanicsOnMistakesOfTheProgram(t *testing.T) {
	var mux brokers.Mux
	mux.Register("mem", memory.Driver{})
	require.PanicsWithValue(t, `brokers: scheme "mem" is registered twice`,
		func() { mux.Register("mem", memory.Driver{}) })
	require.Panics(t, func() { mux.Register("MEM", memory.Driver{}) })
	require.Panics(t, func() { mux.Register("", memory.Driver{}) })
	require.Panics(t, func() { mux.Register("x", nil) })
	require.Panics(t, func() { mux.Register("x", &misnamed{}) })
	require.Equal(t, []string{"mem"}, mux.Schemes())
}

// failing is a driver whose server cannot be reached.
type failing struct{ seen brokers.Config }

var errUnreachable = errors.New("connection refused")

func (*failing) Params() []brokers.Param {
	return []brokers.Param{
		{Name: "prefetch", Type: brokers.Int, Default: "20", Min: 1, Max: 65535},
		{Name: "heartbeat", Native: true},
	}
}

func (f *failing) Open(_ context.Context, cfg brokers.Config) (brokers.Broker, error) {
	f.seen = cfg
	return nil, errUnreachable
}

// silent is a driver whose client ignores the context and waits until a silent server answers.
type silent struct {
	memory.Driver

	answers chan brokers.Broker
}

func (s silent) Open(context.Context, brokers.Config) (brokers.Broker, error) {
	return <-s.answers, nil
}

// Open returns when its context ends even if the driver does not, and closes the broker that the driver opens later.
func TestOpen_EndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mux brokers.Mux
		driver := silent{answers: make(chan brokers.Broker)}
		mux.Register("mem", driver)
		cause := errors.New("no answer within 2s")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Second, cause)
		defer cancel()
		start := time.Now()
		_, err := mux.Open(ctx, "mem://?group=billing")
		require.ErrorIs(t, err, cause)
		require.Less(t, time.Since(start), 3*time.Second)

		late, err := memory.New(brokers.Config{})
		require.NoError(t, err)
		driver.answers <- late
		synctest.Wait()
		require.ErrorIs(t, late.Ping(t.Context()), brokers.ErrClosed)
	})
}

// leaky is a driver whose client library quotes the connection string.
type leaky struct{}

func (*leaky) Params() []brokers.Param {
	return []brokers.Param{{Name: "sasl-token", Secret: true}, {Name: "sslpassword", Native: true}}
}

func (*leaky) Open(_ context.Context, cfg brokers.Config) (brokers.Broker, error) {
	return nil, fmt.Errorf("dial %s with %s: %w", cfg.URL, cfg.Params.String("sasl-token"), errUnreachable)
}

func TestOpen_HidesSecretsThatADriverQuotes(t *testing.T) {
	var mux brokers.Mux
	mux.Register("kafka", &leaky{})
	for _, url := range []string{
		"kafka://app:hush@h:1/?sslpassword=hush&sasl-token=hush",
		"kafka://app:hush%2Fhush@h:1/?sslpassword=hush%2Fhush&sasl-token=hush%2Fhush",
	} {
		_, err := mux.Open(t.Context(), url)
		require.ErrorIs(t, err, errUnreachable)
		require.EqualError(t, err, "dial kafka://app:xxxxx@h:1/?sslpassword=xxxxx with xxxxx: connection refused")
	}
	mux.Register("nats", &leaky{})
	_, err := mux.Open(t.Context(), "nats://hushhush@h:1/?sasl-token=-")
	require.EqualError(t, err, "dial nats://xxxxx@h:1/ with -: connection refused")
}

// misnamed declares a secret parameter whose name does not look like one.
type misnamed struct{ failing }

func (*misnamed) Params() []brokers.Param { return []brokers.Param{{Name: "pin", Secret: true}} }

func TestOpen_GivesTheDriverAResolvedConfig(t *testing.T) {
	var mux brokers.Mux
	var d failing
	mux.Register("amqp", &d)

	_, err := mux.Open(t.Context(), "amqp://app:hush@h:5672/vh?heartbeat=5&prefetch=50&x-group=billing&x-naming=laravel",
		brokers.WithNaming(brokers.NameScheme{Dead: "{queue}.parked"}),
		brokers.WithConfig(func(c *brokers.Config) { c.Group = "overridden by the URL" }))
	require.ErrorIs(t, err, errUnreachable)

	require.Equal(t, "amqp://app:hush@h:5672/vh?heartbeat=5", d.seen.URL, "the backend gets its own URI")
	require.Equal(t, 50, d.seen.Params.Int("prefetch"))
	require.Equal(t, "billing", d.seen.Group)
	require.Equal(t, "orders.parked", d.seen.Naming.For("orders", "billing").Dead)
	require.Equal(t, brokers.DefaultDrainTimeout, d.seen.DrainTimeout)
	require.NotNil(t, d.seen.Logger)
}
