package kafka_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/redrive-go/redrive/brokers"
)

func TestOpen_AuthenticatesWithSASL(t *testing.T) {
	t.Parallel()
	const password = "p,=%ss" // with characters that are escaped in SCRAM, and in a URL
	for mechanism, param := range map[string]string{
		"PLAIN": "sasl=plain", "SCRAM-SHA-256": "sasl=scram-sha-256", "SCRAM-SHA-512": "sasl=scram-sha-512",
	} {
		t.Run(mechanism, func(t *testing.T) {
			t.Parallel()
			c := cluster(t, kfake.EnableSASL(), kfake.Superuser(mechanism, "us,er", password))
			dial := func(password string) error {
				b, err := brokers.OpenConfig(t.Context(), brokers.Config{
					URL: urlOf(c, param), Username: "us,er", Password: password,
				})
				if err != nil {
					return err
				}
				defer func() { require.NoError(t, b.Close()) }()
				return b.Publisher().Publish(name("orders"), newMessage("m", ""))
			}
			require.NoError(t, dial(password))
			err := dial("wrong-secret")
			require.Error(t, err)
			require.NotContains(t, err.Error(), "wrong-secret")
		})
	}
}
