package watermill

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// DelaysEnv is the default environment variable of x-delays-env.
const DelaysEnv = "REDRIVE_DELAYS_URL"

// delaysParam names the variable; serverParam is Config.Server.
const (
	delaysParam = "delays-env"
	serverParam = "delays-server"
)

// URLParams are the parameters of drivers that open a Pub/Sub by URL: [Params], and the source of the URL of Delays.
func URLParams(more ...brokers.Param) []brokers.Param {
	params := append(Params(), brokers.Param{
		Name: delaysParam, Default: DelaysEnv,
		Doc: "Environment variable with the URL of the broker in which delayed messages wait; without it nothing can be " +
			"delayed.",
	}, brokers.Param{
		Name: serverParam,
		Doc: "Name of the server in Delays. If the server is replaced while messages wait, set it to the name that the log " +
			"of the old one shows. Defaults to the server's own name.",
	})
	return append(params, more...)
}

// openDelays opens the broker whose URL is in the environment variable named by x-delays-env, or returns nil if there
// is none.
func openDelays(ctx context.Context, cfg brokers.Config) (brokers.Broker, error) {
	name := cfg.Params.String(delaysParam)
	if name == "" || os.Getenv(name) == "" {
		return nil, nil //nolint:nilnil // no Delays is a configuration
	}
	delays, err := brokers.Open(ctx, os.Getenv(name))
	if err != nil {
		return nil, fmt.Errorf("brokers/watermill: delays (%s): %w", name, err)
	}
	return delays, nil
}

// identity returns the name of the server in Delays: the parameter, or the server's own name.
func (t *transport) identity(ctx context.Context, identify func(context.Context) (string, error)) (string, error) {
	if name := t.broker.Params.String(serverParam); name != "" {
		return name, nil
	}
	server, err := identify(ctx)
	if err == nil && server == "" {
		err = errors.New("the server has none")
	}
	if err != nil {
		return "", fmt.Errorf("brokers/watermill: name of the server in Delays: %w; set x-%s", err, serverParam)
	}
	t.broker.Logger.Info("brokers/watermill: delayed messages of this server wait under its name", serverParam, server)
	return server, nil
}

// digest shortens the name of a server for names in Delays.
func digest(server string) string {
	sum := sha256.Sum256([]byte(server))
	return hex.EncodeToString(sum[:5])
}

// kindOf returns kafka for watermill+kafka://, because brokers of several kinds may share their Delays.
func kindOf(url string) string {
	scheme, _, _ := strings.Cut(url, ":")
	return strings.TrimPrefix(scheme, Scheme+"+")
}

// firstTopic is where the first deliveries of a server's brokers wait in Delays: each of them forwards what is there.
func firstTopic(url, server string) string {
	return "redrive_" + kindOf(url) + "_first_deliveries_" + digest(server)
}

// RetryTopic is where the retries of a consumer wait in the Delays of a broker with that URL. No other consumer's wait
// there, and none of another server. Its name ends in {server} if server is empty, because only that server knows it.
func RetryTopic(url, server, topic, consumer string) string {
	end := "{server}"
	if server != "" {
		end = digest(server)
	}
	return topic + "." + cmp.Or(consumer, brokers.DefaultGroup) + "." + kindOf(url) + "_retries_" + end
}

const (
	delaysConsumer = "redrive" // the consumer of every retry
	delayedPrefix  = "x-parked-"
)

// delayedKeys are headers of a message that the Delays broker would interpret.
var delayedKeys = []string{
	envelope.KeyStage, envelope.KeySuspect, envelope.KeyNotBefore, envelope.KeyTopic, envelope.KeyConsumer,
	envelope.KeyDelay, envelope.KeyWatermillDelayedFor, envelope.KeyWatermillDelayedUntil,
}

// putRetry stores a message for one consumer in the Delays broker.
func (t *transport) putRetry(ctx context.Context, o *driver.Outgoing) error {
	if t.cfg.Delays == nil {
		return fmt.Errorf("%w: a message cannot be sent to a single consumer: configure Delays", brokers.ErrUnsupported)
	}
	if o.ExistingOnly {
		ctx = envelope.WithExistingOnly(ctx)
	}
	m := render(o)
	for _, key := range delayedKeys {
		if value, ok := m.Metadata[key]; ok {
			m.Metadata[delayedPrefix+key] = value
			delete(m.Metadata, key)
		}
	}
	delay := time.Duration(0)
	if !o.Due.IsZero() {
		delay = max(time.Until(o.Due), 0)
	}
	origin := envelope.Origin{
		Topic: RetryTopic(t.broker.URL, t.cfg.Server, o.To.Topic, o.To.Consumer), Consumer: delaysConsumer,
	}
	if err := t.cfg.Delays.Reschedule(ctx, origin, m, delay); err != nil {
		return fmt.Errorf("delays: %w", err)
	}
	return nil
}

// delayed restores a message that comes from the Delays broker.
func delayed(m *message.Message) *message.Message {
	out := message.NewMessage(m.UUID, bytes.Clone(m.Payload))
	maps.Copy(out.Metadata, m.Metadata)
	for _, key := range delayedKeys {
		delete(out.Metadata, key)
		if value, ok := m.Metadata[delayedPrefix+key]; ok {
			out.Metadata[key] = value
			delete(out.Metadata, delayedPrefix+key)
		}
	}
	return out
}

// subscribeRetries reads the retries of a consumer.
func (t *transport) subscribeRetries(ctx context.Context, q *driver.Queue) (
	message.Subscriber, <-chan *message.Message, error,
) {
	sub := t.cfg.Delays.Subscriber(brokers.WithGroup(delaysConsumer), brokers.WithConcurrency(q.Concurrency),
		driver.WithoutCrashLimit(t.cfg.Delays))
	messages, err := sub.Subscribe(ctx, RetryTopic(t.broker.URL, t.cfg.Server, q.Topic, q.Group))
	if err != nil {
		_ = sub.Close()
		return nil, nil, fmt.Errorf("delays: %w", err)
	}
	return sub, messages, nil
}
