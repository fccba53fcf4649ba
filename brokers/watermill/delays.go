package watermill

import (
	"context"
	"fmt"
	"os"

	"github.com/redrive-go/redrive/brokers"
)

// DelaysEnv is the default environment variable of x-delays-env.
const DelaysEnv = "REDRIVE_DELAYS_URL"

// URLParams are the parameters of drivers that open a Pub/Sub by URL: [Params], and the source of the URL of Delays.
func URLParams(more ...brokers.Param) []brokers.Param {
	params := append(Params(), brokers.Param{
		Name: "delays-env", Default: DelaysEnv,
		Doc: "Environment variable with the URL of the broker in which delayed messages wait; without it nothing can be " +
			"delayed.",
	})
	return append(params, more...)
}

// OpenDelays opens the broker whose URL is in the environment variable named by x-delays-env. given, which the caller
// closes, takes precedence. done closes the opened broker; call it after closing the broker that uses it. Without
// either, delays is nil and done does nothing.
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
