package rabbitmq

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// Properties of the message are copied; properties of an earlier publication are not.
func TestProperties_AllowList(t *testing.T) {
	d := amqp.Delivery{
		MessageId: "id", CorrelationId: "c", ContentType: "application/json", ContentEncoding: "gzip",
		Type:  "invoice.created",
		AppId: "php", ReplyTo: "answers", Timestamp: time.Unix(1_700_000_000, 0).UTC(), Priority: 7,
		Expiration: "500", UserId: "guest", DeliveryMode: amqp.Transient, Body: []byte("{}"),
	}
	m := unmarshal(&d)
	require.Equal(t, "id", m.UUID)
	require.Equal(t, "invoice.created", m.Metadata[envelope.KeyAMQPType])
	require.Equal(t, amqp.Publishing{
		MessageId: "id", CorrelationId: "c", ContentType: "application/json", ContentEncoding: "gzip",
		Type:  "invoice.created",
		AppId: "php", ReplyTo: "answers", Timestamp: d.Timestamp, Priority: 7,
		DeliveryMode: amqp.Persistent, Body: []byte("{}"), Headers: amqp.Table{},
	}, marshal(m, nil))
}

func TestProperties_OfAForeignProducerWithoutAny(t *testing.T) {
	m := unmarshal(&amqp.Delivery{Body: []byte("x")})
	require.Empty(t, m.UUID)
	require.Empty(t, m.Metadata)
	m = unmarshal(&amqp.Delivery{Headers: amqp.Table{"_watermill_message_uuid": "u"}})
	require.Equal(t, "u", m.UUID)
}

// A foreign producer's header may be longer than the property for which it stands.
func TestProperties_LongHeadersAreNoProperties(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 300)
	for _, key := range []string{
		keyWatermillUUID, envelope.KeyMessageID, envelope.KeyCorrelationID, envelope.KeyContentType,
	} {
		m := unmarshal(&amqp.Delivery{Headers: amqp.Table{key: long}})
		again := outgoing{msg: marshal(m, nil)}
		require.NoError(t, checkSize(&again, 128<<10), key)
		require.Equal(t, long, again.msg.Headers[key])
	}
}

func TestProperties_ThatCannotBeReadAreLeftOut(t *testing.T) {
	m := message.NewMessage("id", nil)
	m.Metadata[envelope.KeyAMQPPriority] = "high"
	m.Metadata[envelope.KeyAMQPTimestamp] = "yesterday"
	p := marshal(m, nil)
	require.Zero(t, p.Priority)
	require.True(t, p.Timestamp.IsZero())
}

// A 140 KB header, or a name of 256 bytes, ends the connection and fails all publishes on it.
func TestCheckSize_RefusesMessagesThatEndTheConnection(t *testing.T) {
	const frame = 131072
	for name, o := range map[string]outgoing{
		"headers beyond a frame": {msg: amqp.Publishing{Headers: amqp.Table{"x": strings.Repeat("x", frame)}}},
		"nested beyond a frame": {msg: amqp.Publishing{Headers: amqp.Table{"x": []any{amqp.Table{"y": make([]byte,
			frame)}}}}},
		"a long name": {msg: amqp.Publishing{Headers: amqp.Table{strings.Repeat("n", 256): ""}}},
		"a long name inside": {msg: amqp.Publishing{Headers: amqp.Table{"x": []any{amqp.Table{strings.Repeat("n",
			256): ""}}}}},
		"a long routing key": {key: strings.Repeat("k", 256)},
		"a long message id":  {msg: amqp.Publishing{MessageId: strings.Repeat("i", 256)}},
		"a long type":        {msg: amqp.Publishing{Type: strings.Repeat("i", 256)}},
	} {
		require.ErrorIs(t, checkSize(&o, frame), brokers.ErrTooLarge, name)
	}
	fits := outgoing{key: strings.Repeat("k", 255), msg: amqp.Publishing{Headers: amqp.Table{
		strings.Repeat("n", 255): strings.Repeat("x", 120<<10), "t": amqp.Table{"n": nil, "f": 1.5},
	}}}
	require.NoError(t, checkSize(&fits, frame))
}

func TestRemaining_IsBoundedForAnyClock(t *testing.T) {
	now := time.UnixMilli(1_800_000_000_000)
	at := func(d time.Duration) int64 { return now.Add(d).UnixMilli() }
	for name, tc := range map[string]struct {
		headers amqp.Table
		want    time.Duration
	}{
		"no value":        {amqp.Table{}, 0},
		"due in a second": {amqp.Table{"x-not-before": at(time.Second)}, time.Second},
		"as text":         {amqp.Table{"x-not-before": "1800000001000"}, time.Second},
		"not a number":    {amqp.Table{"x-not-before": "soon"}, 0},
		"a table":         {amqp.Table{"x-not-before": amqp.Table{}}, 0},
		"due long ago":    {amqp.Table{"x-not-before": at(-time.Hour), keyRest: int64(500)}, -time.Hour},
		"a clock an hour behind": {
			amqp.Table{"x-not-before": at(time.Hour), keyRest: int64(500)},
			500 * time.Millisecond,
		},
		"beyond all bounds": {amqp.Table{"x-not-before": int64(math.MaxInt64)}, envelope.MaxDelay},
		"before all bounds": {
			amqp.Table{"x-not-before": int64(math.MinInt64)},
			time.UnixMilli(math.MinInt64).Sub(now),
		},
		"a negative rest":             {amqp.Table{"x-not-before": at(time.Second), keyRest: int64(-1)}, time.Second},
		"a rest that is not a number": {amqp.Table{"x-not-before": at(time.Second), keyRest: "x"}, time.Second},
	} {
		require.LessOrEqual(t, remaining(tc.headers, now), time.Duration(0), "%s: a producer's values are ignored",
			name)
		tc.headers["x-death"] = []any{amqp.Table{"reason": "expired", "queue": "orders_retry.1000"}}
		require.Equal(t, tc.want, remaining(tc.headers, now), name)
	}
}

// A message that earlier consumers rejected has used those cycles, in addition to those that our own counter has.
func TestCountRejections(t *testing.T) {
	deaths := []any{
		"nonsense",
		amqp.Table{"queue": "orders.deadletter", "reason": "expired", "count": int64(2)},
		amqp.Table{"queue": "orders", "reason": "rejected", "count": int64(2)},
	}
	for name, tc := range map[string]struct {
		deaths any
		had    string
		want   string
	}{
		"rejected twice":     {deaths, "", "2"},
		"after a retry":      {deaths, "1", "3"},
		"an odd counter":     {deaths, "abc", "abc"},
		"a huge counter":     {deaths, "9223372036854775807", "9223372036854775807"},
		"a negative counter": {deaths, "-1", "-1"},
		"never rejected":     {[]any{}, "", ""},
		"another form":       {"twice", "", ""},
		"rejected elsewhere": {[]any{amqp.Table{"queue": "q", "reason": "rejected", "count": int64(9)}}, "", ""},
		"an odd count":       {[]any{amqp.Table{"queue": "orders", "reason": "rejected", "count": "9x"}}, "", ""},
	} {
		metadata := message.Metadata{}
		if tc.had != "" {
			metadata[envelope.KeyRetryCount] = tc.had
		}
		countRejections(amqp.Table{"x-death": tc.deaths}, "orders", metadata)
		require.Equal(t, tc.want, metadata[envelope.KeyRetryCount], name)
	}
}

// On a bus, every publication, including retries and dead letters, names its event in the AMQP property type, which the
// PHP consumers read. A value that the producer has set is kept.
func TestType_OnABus(t *testing.T) {
	open := func(naming brokers.NameScheme) *transport {
		cfg, err := brokers.Config{
			URL: "amqp://localhost/", Naming: naming,
			Group: "invoice-service",
		}.Resolve(Driver{}.Params())
		require.NoError(t, err)
		d, err := newDesign(cfg)
		require.NoError(t, err)
		return &transport{cfg: cfg, design: d}
	}
	first := func(tr *transport, topic string, m *message.Message) outgoing {
		o, err := tr.outgoing(&driver.Outgoing{
			Message: m, First: true, To: &driver.Destination{Kind: driver.ToTopic, Topic: topic, Names: tr.NamesFor(topic, "")},
		})
		require.NoError(t, err)
		return o
	}
	m := func(kv ...string) *message.Message {
		m := message.NewMessage("1", nil)
		for i := 0; i < len(kv); i += 2 {
			m.Metadata[kv[i]] = kv[i+1]
		}
		return m
	}
	bus := open(brokers.ServiceBus("easyweek"))
	origin := &envelope.Origin{
		Topic: "invoice.*", Consumer: "easyweek.invoice-service", Exchange: "easyweek.bus", RoutingKey: "invoice.created",
	}
	for name, c := range map[string]struct {
		message *message.Message
		want    string
	}{
		"the routing key":                     {m(), "invoice.created"},
		"our event header":                    {m(envelope.KeyEvent, "invoice.made"), "invoice.made"},
		"the producer's own":                  {m(envelope.KeyAMQPType, "invoice.signed"), "invoice.signed"},
		"the producer's own takes precedence": {m(envelope.KeyAMQPType, "a", envelope.KeyEvent, "b"), "a"},
		"of a retried message":                {m(envelope.KeyRetryCount, "1"), "invoice.created"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, first(bus, "invoice.created", c.message).msg.Type)
			for _, kind := range []driver.DestinationKind{driver.ToConsumer, driver.ToDeadLetters} {
				again, err := bus.outgoing(&driver.Outgoing{
					Message: c.message, Origin: origin, Delay: time.Second, Due: time.Now().Add(time.Second),
					To: &driver.Destination{Kind: kind, Topic: origin.Topic, Names: bus.NamesOf(origin.Topic, origin.Consumer)},
				})
				require.NoError(t, err)
				require.Equal(t, c.want, again.msg.Type)
			}
		})
	}
	require.Empty(t, first(open(brokers.Laravel()), "orders", m()).msg.Type)
}

// The delay that a pipeline announces becomes the time to live of a TTL cycle's queue, unless the URL names one.
func TestExpect_TimeToLiveOfACycle(t *testing.T) {
	ttl := func(params brokers.Params, announced ...time.Duration) time.Duration {
		cfg := brokers.Config{URL: "amqp://localhost/", Naming: brokers.TTLCycle("sme.sgp.workers"), Params: params}
		cfg, err := cfg.Resolve(Driver{}.Params())
		require.NoError(t, err)
		d, err := newDesign(cfg)
		require.NoError(t, err)
		(&transport{cfg: cfg, design: d}).Expect(announced)
		p := d.plan("", []string{"dre"})
		for _, q := range p.Queues {
			if q.Name == "dre.deadletter" {
				return time.Duration(q.Args["x-message-ttl"].(int64)) * time.Millisecond
			}
		}
		t.Fatal("no wait queue")
		return 0
	}
	require.Equal(t, 5*time.Second, ttl(nil))
	require.Equal(t, 10*time.Minute, ttl(nil, 10*time.Minute))
	require.Equal(t, time.Minute, ttl(brokers.Params{"retry-ttl": "1m"}, 10*time.Minute))
	require.Equal(t, 5*time.Second, ttl(nil, time.Second, time.Minute), "more than one delay")
}
