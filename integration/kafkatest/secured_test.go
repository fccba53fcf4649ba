package kafkatest

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// On a listener with TLS, client certificates and a password, with every SASL mechanism, the whole life of a message
// works, and a client that lacks any of the three is refused.
func TestSecured_TLSAndSASL(t *testing.T) {
	k := services.Kafka(t, services.KafkaConfig{Secured: true})
	s := k.Secured
	open := func(password string, params url.Values) (brokers.Broker, error) {
		ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
		defer cancel()
		return brokers.OpenConfig(ctx, brokers.Config{
			URL: "kafka://" + s.Addr + "?" + params.Encode(), Group: "billing", Username: s.User, Password: password,
			PublishTimeout: await.Patience,
		})
	}
	all := func() url.Values {
		return url.Values{"tls": {"true"}, "tls-ca": {s.CA}, "tls-cert": {s.Cert}, "tls-key": {s.Key}}
	}

	for _, mechanism := range []string{"plain", "scram-sha-256", "scram-sha-512"} {
		t.Run(mechanism, func(t *testing.T) {
			params := all()
			params.Set("sasl", mechanism)
			b, err := open(s.Password, params)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, b.Close()) })
			topic := k.Topic(t)
			messages, err := b.Subscriber().Subscribe(t.Context(), topic)
			require.NoError(t, err)
			require.NoError(t, b.Publisher().Publish(topic, message.NewMessage("m-1", []byte("hello"))))
			m := receive(t, messages)
			origin, _ := envelope.OriginFrom(m.Context())
			require.NoError(t, b.Reschedule(t.Context(), *origin, m.Copy(), 200*time.Millisecond))
			m.Ack()
			m = receive(t, messages)
			require.Equal(t, "hello", string(m.Payload))
			require.NoError(t, b.DeadLetter(t.Context(), &envelope.DeadLetter{Message: m, Origin: *origin, Reason: "permanent"}))
			m.Ack()

			_, err = open("wrong-secret", params)
			require.Error(t, err)
			require.NotContains(t, err.Error(), "wrong-secret")
		})
	}
	for _, missing := range []string{"tls", "tls-ca", "tls-cert"} {
		t.Run("without "+missing, func(t *testing.T) {
			params := all()
			switch missing {
			case "tls":
				params = url.Values{}
			case "tls-cert":
				params.Del("tls-key")
			}
			params.Del(missing)
			_, err := open(s.Password, params)
			require.Error(t, err)
		})
	}
}
