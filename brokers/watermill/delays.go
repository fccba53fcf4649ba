package watermill

import (
	"context"
	"fmt"
	"os"

	"github.com/redrive-go/redrive/brokers"
)

// DelaysEnv is the environment variable that x-delays-env names by default.
const DelaysEnv = "REDRIVE_DELAYS_URL"

// URLParams are the parameters of drivers that open a Pub/Sub by URL: [Params], and where the URL of Delays stands.
func URLParams(more ...brokers.Param) []brokers.Param {
	params := append(Params(), brokers.Param{
		Name: "delays-env", Default: DelaysEnv,
		Doc: "Environment variable with the URL of the broker in which delayed messages wait; without it nothing can be " +
			"delayed.",
	})
	return append(params, more...)
}

// OpenDelays opens the broker whose URL is in the environment variable that x-delays-env names. given, which stays
// the caller's, wins over it. done closes what was opened; call it after the broker that uses it was closed. Without
// both, delays is nil and done does nothing.
func OpenDelays(ctx context.Context, cfg brokers.Config, given brokers.Broker) (delays brokers.Broker,
	done func() error, err error,
) {
	none := func() error { return nil }
	if given != nil {
		return given, none, nil
	}
	url := os.Getenv(cfg.Params.String("delays-env"))
	if url == "" {
		return nil, none, nil
	}
	if delays, err = brokers.Open(ctx, url); err != nil {
		return nil, nil, fmt.Errorf("delays: %w", err)
	}
	return delays, delays.Close, nil
}
