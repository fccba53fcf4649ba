package amqp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/amqpfault"
	wbroker "github.com/redrive-go/redrive/brokers/watermill"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/scheme"
)

// Schemes of the URLs that this driver opens.
const (
	Scheme    = "watermill+amqp"
	SchemeTLS = "watermill+amqps"
)

func init() {
	brokers.Register(Scheme, Driver{})
	brokers.Register(SchemeTLS, Driver{})
}

// Driver opens watermill+amqp:// URLs.
type Driver struct{}

var _ brokers.Driver = Driver{}

// Params implements brokers.Driver.
func (Driver) Params() []brokers.Param { return wbroker.URLParams() }

// Open implements brokers.Driver.
func (Driver) Open(ctx context.Context, cfg brokers.Config) (brokers.Broker, error) {
	return New(ctx, Config{Broker: cfg})
}

// Config is for programs that open the broker themselves.
type Config struct {
	// Broker has the URL and the settings of every broker. Required: Broker.URL.
	Broker brokers.Config
	// Marshaler converts messages, for services that have their own. Defaults to one that accepts every delivery.
	Marshaler wamqp.Marshaler
	// Delays keeps delayed messages. The caller closes it. Defaults to the broker of the environment variable
	// x-delays-env.
	Delays brokers.Broker
	// Change may change the configuration of watermill-amqp, for other topologies. A queue must belong to one group.
	Change func(*wamqp.Config)
}

// New opens a broker. Close it.
func New(ctx context.Context, cfg Config) (brokers.Broker, error) {
	var err error
	if cfg.Broker, err = cfg.Broker.Resolve(Driver{}.Params()); err != nil {
		return nil, err
	}
	cfg.Marshaler = cmp.Or[wamqp.Marshaler](cfg.Marshaler, Marshaler{})
	logger := wbroker.Logger(cfg.Broker.Logger)
	uri := strings.TrimPrefix(cfg.Broker.URL, scheme.Adapted)
	connection, err := wamqp.NewConnection(wamqp.ConnectionConfig{AmqpURI: uri}, logger)
	if err != nil {
		return nil, fmt.Errorf("watermill+amqp: open %s: %w", brokers.Redact(cfg.Broker.URL), withoutURL(err))
	}
	c := &client{cfg: cfg, uri: uri, logger: logger, connection: connection}
	publisher, err := wamqp.NewPublisherWithConnection(c.config(""), logger, connection)
	if err != nil {
		_ = connection.Close()
		return nil, fmt.Errorf("watermill+amqp: publisher: %w", withoutURL(err))
	}
	return wbroker.Open(ctx, wbroker.Config{
		Publisher:     closing{publisher, connection},
		NewSubscriber: c.subscriber,
		Delays:        cfg.Delays,
		Initialize:    c.initialize,
		Ping: func(context.Context) error {
			if !connection.IsConnected() {
				return errors.New("not connected")
			}
			return nil
		},
		Competing: true,
		AckGrace:  5 * time.Second,
		Durable:   true,
		// All headers must fit into one frame, of 128 KiB by default: a server closes the connection over a larger one.
		MaxHeaderBytes: 100 << 10,
		Broker:         cfg.Broker,
	}, Driver{}.Params(), c.clusterName)
}

// withoutURL replaces an error that may contain a URL with its password.
func withoutURL(err error) error {
	if strings.Contains(err.Error(), "://") {
		return errors.New("the server cannot be reached, or refuses the user")
	}
	return amqpfault.Connecting(err)
}

// closing also closes the publisher's connection.
type closing struct {
	message.Publisher

	connection *wamqp.ConnectionWrapper
}

// Close implements message.Publisher.
func (c closing) Close() error { return errors.Join(c.Publisher.Close(), c.connection.Close()) }

// client creates watermill-amqp's components on one connection.
type client struct {
	cfg        Config
	uri        string
	logger     watermill.LoggerAdapter
	connection *wamqp.ConnectionWrapper
}

// config returns the configuration of a group's subscriber. For the publisher the group does not matter.
func (c *client) config(group string) wamqp.Config {
	config := wamqp.NewDurablePubSubConfig(c.uri,
		func(topic string) string { return c.cfg.Broker.Naming.For(topic, group).Queue })
	config.Marshaler = tolerant{c.cfg.Marshaler, c.refused}
	config.Publish.ConfirmDelivery = true
	if c.cfg.Change != nil {
		c.cfg.Change(&config)
	}
	return config
}

func (c *client) refused(d *amqp091.Delivery, err error) {
	c.cfg.Broker.Logger.Warn("watermill+amqp: the marshaler refuses a delivery, which is delivered unchanged",
		"exchange", d.Exchange, "message_id", strings.ToValidUTF8(d.MessageId, "?"), "error", err.Error())
}

func (c *client) subscriber(group string) (message.Subscriber, error) {
	return wamqp.NewSubscriberWithConnection(c.config(group), c.logger, c.connection)
}

// initialize declares exchange and queue: a fanout exchange without a queue drops its messages.
func (c *client) initialize(_ context.Context, topic, group string) error {
	sub, err := wamqp.NewSubscriberWithConnection(c.config(group), c.logger, c.connection)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Close() }()
	return sub.SubscribeInitialize(topic)
}

// clusterName is what an operator calls the cluster, by default the name of its first node, and the virtual host.
func (c *client) clusterName(context.Context) (string, error) {
	conn := c.connection.Connection()
	name, _ := conn.Properties["cluster_name"].(string)
	if name == "" {
		return "", nil
	}
	return name + " " + conn.Config.Vhost, nil
}

// Marshaler writes the same as watermill-amqp's DefaultMarshaler, and reads every delivery: the default one fails on a
// header that is not a string, and watermill-amqp then redelivers the message forever, before any handler.
type Marshaler struct{ wamqp.DefaultMarshaler }

var _ wamqp.Marshaler = Marshaler{}

// errGhost makes watermill-amqp consume again: it treats the end of a consumer, whose queue was deleted, as an empty
// message.
var errGhost = errors.New("the consumer was cancelled")

// maxShortString is the longest text of a property or a header's name. amqp091-go closes the connection, which all
// publishers and subscribers share, when it cannot encode one.
const maxShortString = 255

// Marshal leaves out the broker's own headers: a server treats some of them as instructions.
func (m Marshaler) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	p, err := m.DefaultMarshaler.Marshal(msg)
	if len(msg.UUID) <= maxShortString {
		p.MessageId = msg.UUID // for readers that do not use Watermill
	}
	for key := range p.Headers {
		if len(key) > maxShortString {
			return p, fmt.Errorf("%w: a header's name has %d bytes, AMQP allows %d",
				brokers.ErrTooLarge, len(key), maxShortString)
		}
		// A CC of another delivery misroutes the message, and one that is a string closes the channel.
		if envelope.IsBrokerMade(key) || key == "CC" || key == "BCC" {
			delete(p.Headers, key)
		}
	}
	return p, err
}

// Unmarshal renders every header as text. A message without Watermill's id has that of the AMQP property, if any.
func (m Marshaler) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	if d.Acknowledger == nil {
		return nil, errGhost
	}
	texts := make(amqp091.Table, len(d.Headers)+1)
	for key, value := range d.Headers {
		texts[key] = text(value)
	}
	d.Headers = texts
	msg, err := m.DefaultMarshaler.Unmarshal(d)
	if err == nil && msg.UUID == "" {
		msg.UUID = d.MessageId
	}
	return msg, err
}

// tolerant delivers unchanged what a user's marshaler refuses, so that the handler fails and the message becomes a dead
// letter: watermill-amqp would redeliver it forever.
type tolerant struct {
	wamqp.Marshaler

	refused func(d *amqp091.Delivery, err error)
}

// Unmarshal implements watermill-amqp's Marshaler.
func (t tolerant) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	if d.Acknowledger == nil {
		return nil, errGhost
	}
	msg, err := t.Marshaler.Unmarshal(d)
	if err == nil {
		return msg, nil
	}
	t.refused(&d, err)
	return Marshaler{}.Unmarshal(d)
}

func text(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	case []byte:
		return string(v)
	case bool:
		return strconv.FormatBool(v)
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano)
	case amqp091.Table, []any:
		if b, err := json.Marshal(v); err == nil {
			return string(b)
		}
	}
	return fmt.Sprint(value)
}
