package rabbitmq

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

func designOf(t *testing.T, cfg brokers.Config) *design {
	t.Helper()
	cfg.URL = "amqp://localhost/"
	cfg, err := cfg.Resolve(Driver{}.Params())
	require.NoError(t, err)
	d, err := newDesign(cfg)
	require.NoError(t, err)
	return d
}

// The presets have one retry queue, and it serves every backoff: each message carries its own time to live.
func TestRoute_OneRetryQueue(t *testing.T) {
	for name, c := range map[string]struct {
		cfg   brokers.Config
		queue string
	}{
		"laravel": {brokers.Config{Naming: brokers.Laravel()}, "orders_retry"},
		"laravel, named delays": {brokers.Config{
			Naming: brokers.Laravel(),
			Delays: []time.Duration{time.Second, time.Minute},
		}, "orders_retry"},
		"delayed backoff": {brokers.Config{Naming: brokers.DelayedBackoff()}, "orders-delayed-queue"},
		"few queues":      {brokers.Config{Params: brokers.Params{"grid": "false"}}, "orders_retry"},
	} {
		t.Run(name, func(t *testing.T) {
			d := designOf(t, c.cfg)
			n := d.names("orders", "")
			for _, delay := range []time.Duration{
				time.Millisecond, 200 * time.Millisecond, time.Second, 7 * time.Second,
				time.Hour,
			} {
				r, err := d.retry(n, &envelope.Origin{}, delay)
				require.NoError(t, err)
				require.Equal(t, route{key: c.queue, expiration: delay.Milliseconds()}, r)
			}
			waits := d.waiting(n, "orders")
			require.Empty(t, waits.Later)
			require.Len(t, waits.Queues, 1)
			require.Equal(t, c.queue, waits.Queues[0].Name)
			require.NotContains(t, waits.Queues[0].Args, "x-message-ttl")
			require.Equal(t, envelope.MaxDelay, d.maxDelay())
		})
	}
	d := designOf(t, brokers.Config{Naming: brokers.Laravel()})
	r, err := d.retry(d.names("orders", ""), &envelope.Origin{}, 0)
	require.NoError(t, err)
	require.Equal(t, "orders_retry", r.key, "also without a backoff")

	perDelay := brokers.NameScheme{Preset: "laravel", Retry: "{queue}_retry.{delay}"}
	named := designOf(t, brokers.Config{Naming: perDelay, Delays: []time.Duration{time.Second}})
	r, err = named.retry(named.names("orders", ""), &envelope.Origin{}, time.Second)
	require.NoError(t, err)
	require.Equal(t, route{key: "orders_retry.1000", expiration: 1000}, r, "a name with {delay} means a queue per delay")
}

// A retry queue that was created with a time to live serves shorter delays directly and longer ones in rounds; delays
// that would need too many rounds use the queue named after the delay.
func TestRoute_RetryQueueWithATimeToLive(t *testing.T) {
	d := designOf(t, brokers.Config{Naming: brokers.Laravel(), Delays: []time.Duration{10 * time.Second}})
	n := d.names("orders", "")
	retry := func(delay time.Duration) route {
		r, err := d.retry(n, &envelope.Origin{}, delay)
		require.NoError(t, err)
		return r
	}
	d.known.Store("orders_retry", amqp.Table{"x-message-ttl": int64(1000)})
	require.Equal(t, route{key: "orders_retry", expiration: 500}, retry(500*time.Millisecond))
	require.Equal(t, route{key: "orders_retry", expiration: 10000, rest: 9 * time.Second, checked: true},
		retry(10*time.Second))
	d.known.Store("orders_retry", amqp.Table{"x-message-ttl": int64(0)})
	require.Equal(t, route{key: "orders_retry.10000", expiration: 10_000}, retry(10*time.Second))
}

// An adopted cycle queue of ten minutes waits ten minutes once, instead of five seconds 120 times.
func TestRoute_CycleWithItsOwnTimeToLive(t *testing.T) {
	d := designOf(t, brokers.Config{
		Naming: brokers.TTLCycle("sme.sgp.workers"),
		Params: brokers.Params{"declare": "adopt"},
	})
	n := d.names("dre", "")
	d.known.Store("dre.deadletter", amqp.Table{"x-message-ttl": (10 * time.Minute).Milliseconds()})
	r, err := d.retry(n, &envelope.Origin{RoutingKey: "dre"}, 10*time.Minute)
	require.NoError(t, err)
	require.Equal(t, route{exchange: "sme.sgp.workers.deadletter", key: "dre", checked: true, expiration: 600_000}, r)
}

// A configuration that cannot work is refused with a remedy that differs from the current setting.
func TestPlan_ReturnFromTheRetryQueue(t *testing.T) {
	adopting := func(declare string) Plan {
		d := designOf(t, brokers.Config{Naming: brokers.Laravel(), Params: brokers.Params{"declare": declare}})
		return d.plan("", []string{"orders"})
	}
	for _, declare := range []string{declareAdopt, declareNone} {
		p := adopting(declare)
		w, ok := p.returnPathOf("orders_retry")
		require.True(t, ok, declare)
		for name, c := range map[string]struct {
			args amqp.Table
			why  string
			more []Binding
		}{
			"as planned": {args: amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}},
			"nothing":    {args: amqp.Table{}, why: "no x-dead-letter-exchange"},
			"expires": {
				args: amqp.Table{
					"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders", "x-message-ttl": int32(5000),
					"x-expires": int32(60_000),
				},
				why: "it has x-expires=60000",
			},
			"quorum expires": {
				args: amqp.Table{
					"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders", "x-message-ttl": int32(5000),
					"x-expires": int32(600_000), "x-queue-type": "quorum",
				},
				why: "it has x-expires=600000",
			},
			"renewed": {args: amqp.Table{
				"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders", "x-message-ttl": int32(5000),
				"x-expires": int32(65_000),
			}},
			"a time to live": {args: amqp.Table{"x-message-ttl": int64(5000)}, why: "no x-dead-letter-exchange"},
			"to itself":      {args: amqp.Table{"x-dead-letter-exchange": ""}, why: `dead-letters to queue "orders_retry"`},
			"elsewhere": {
				args: amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "mails"},
				why:  `to queue "mails"`,
			},
			"through exchange": {
				args: amqp.Table{"x-dead-letter-exchange": "shop"},
				more: []Binding{{Exchange: "shop", Key: "orders_retry", To: "orders"}},
			},
		} {
			more, err := p.returnBindings(w, c.args)
			require.Equal(t, c.more, more, name)
			if c.why == "" {
				require.NoError(t, err, name)
				continue
			}
			require.ErrorContains(t, err, c.why, name)
			want := map[string]string{declareAdopt: "retry=%7Bqueue%7D_wait", declareNone: "rabbitmqctl set_policy"}[declare]
			if declare == declareNone && c.args["x-dead-letter-routing-key"] != nil {
				want = "delete it when it is empty" // no policy overrides arguments
			}
			require.ErrorContains(t, err, want)
			require.NotContains(t, err.Error(), "declare="+declare)
		}
	}
}

// In a cycle whose rejects reach the retry queue through an exchange, a second retry queue would be bound there with
// the same key, and every reject and every retry would be in both queues. So retry= is no remedy; and none is a policy
// against the queue's own arguments, which win.
func TestPlan_RemedyOfACycle(t *testing.T) {
	const retry, policy, again = "retry=", "set_policy --apply-to queues", "delete it when it is empty"
	none, elsewhere := amqp.Table{}, amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "mails"}
	for name, c := range map[string]struct {
		naming  brokers.NameScheme
		declare string
		args    amqp.Table
		want    string
	}{
		"cycle":                     {brokers.TTLCycle("shop"), declareAdopt, none, policy},
		"cycle, elsewhere":          {brokers.TTLCycle("shop"), declareAdopt, elsewhere, again},
		"cycle, nothing declared":   {brokers.TTLCycle("shop"), declareNone, none, policy},
		"cycle without an exchange": {brokers.TTLCycle(""), declareAdopt, none, retry},
		"laravel":                   {brokers.Laravel(), declareAdopt, none, retry},
		"laravel, elsewhere":        {brokers.Laravel(), declareNone, elsewhere, again},
	} {
		d := designOf(t, brokers.Config{Naming: c.naming, Params: brokers.Params{"declare": c.declare}})
		p := d.plan("", []string{"orders"})
		path, ok := p.returnPathOf(d.names("orders", "").Retry(0))
		require.True(t, ok, name)
		_, err := p.returnBindings(path, c.args)
		for _, remedy := range []string{retry, policy, again} {
			require.Equal(t, remedy == c.want, strings.Contains(err.Error(), remedy), "%s: %s: %v", name, remedy, err)
		}
		if c.want != again {
			require.ErrorContains(t, err, "management=http://", "%s: a policy that AMQP does not show may return them", name)
		}
	}
}

// A number that RabbitMQ 3 compares with ours became a text, which never agrees: it cost 24 channels, and as many lines
// in the broker's log.
func TestArgumentError_Take(t *testing.T) {
	args := amqp.Table{
		"x-message-ttl": int64(1), "x-queue-type": "quorum", "x-dead-letter-exchange": "a",
		"x-delivery-limit": int64(1_000_000), "x-dead-letter-routing-key": "orders",
	}
	for _, e := range []ArgumentError{
		{Argument: "x-message-ttl", Have: "5000", haveType: "signedint"},
		{Argument: "x-queue-type", Have: "none"},
		{Argument: "x-dead-letter-exchange", Have: `""`, haveType: "longstr"},
		{Argument: "x-single-active-consumer", Have: "true", haveType: "bool"},
		{Argument: "x-delivery-limit", Have: "2"},
		{Argument: "x-dead-letter-routing-key", Have: "17"},
	} {
		e.applyTo(args)
	}
	require.Equal(t, amqp.Table{
		"x-message-ttl": int64(5000), "x-dead-letter-exchange": "",
		"x-single-active-consumer": true, "x-delivery-limit": int64(2), "x-dead-letter-routing-key": "17",
	}, args)
}

// A plain x-delay header from a producer in another language is the base of the backoff, but one that we set is not.
func TestHeaders_PlainDelayIsTheBase(t *testing.T) {
	base := func(headers amqp.Table) string {
		md := message.Metadata{}
		headersToMetadata(headers, md)
		require.NotContains(t, md, envelope.KeyDelay)
		return md[envelope.KeyOriginalDelay]
	}
	require.Equal(t, "10000", base(amqp.Table{"x-delay": int32(10000)}))
	require.Equal(t, "10000", base(amqp.Table{"x-delay": int64(-10000)}), "as the plugin sets it")
	require.Equal(t, "10000", base(amqp.Table{"x-delay": "10000"}))
	require.Equal(t, "7000", base(amqp.Table{"x-delay": int32(10000), "x-original-delay": "7000"}))
	require.Empty(t, base(amqp.Table{"x-delay": int32(10000), "x-retry-count": int32(1)}))
	require.Empty(t, base(amqp.Table{"x-delay": "soon"}))
}

// A queue's delivery limit still counts when the user may no longer see it: RabbitMQ would give messages up earlier.
func TestLook_RefusedAfterOthers(t *testing.T) {
	d, seen := designOf(t, brokers.Config{}), amqp.Table{"x-delivery-limit": int64(3)}
	d.declared.Store("orders", seen)
	d.refused.Store("orders", time.Now())
	args, err := d.look(t.Context(), nil, Queue{Name: "orders"})
	require.Error(t, err)
	require.Equal(t, seen, args)
}

// A permission that is granted while a process runs used to be noticed only by the next process.
func TestLook_RefusalsAreForgotten(t *testing.T) {
	d := designOf(t, brokers.Config{})
	link := newConnection("amqp://localhost/", "", slog.New(slog.DiscardHandler))
	link.close()
	d.refused.Store("orders", time.Now())
	_, err := d.look(t.Context(), &declarer{link: link}, Queue{Name: "orders"})
	require.True(t, isRefused(err))
	d.refused.Store("orders", time.Now().Add(-refusedFor))
	_, err = d.look(t.Context(), &declarer{link: link}, Queue{Name: "orders"})
	require.ErrorIs(t, err, brokers.ErrClosed, "it looks again")
}
