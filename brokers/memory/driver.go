package memory

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// Scheme of the URLs that open this broker.
const Scheme = "mem"

func init() { brokers.Register(Scheme, driver{}) }

type driver struct{}

var _ brokers.Driver = driver{}

func (driver) Params() []brokers.Param {
	return []brokers.Param{
		{
			Name: "nack-pause", Kind: brokers.Duration, Default: "100ms", Min: int64(time.Millisecond),
			Doc: "pause before a nacked message comes back; doubled at each further nack, up to 64 times",
		},
		{
			Name: "max-message", Kind: brokers.Size, Default: "0",
			Doc: "largest message in bytes, payload and headers together; 0 means no limit",
		},
	}
}

func (driver) Open(_ context.Context, cfg brokers.Config) (brokers.Broker, error) {
	rest, _, _ := strings.Cut(strings.TrimPrefix(cfg.URL, Scheme+"://"), "?")
	if rest != "" {
		return nil, fmt.Errorf("memory: %s: write %s:// and no host or path: every Open makes a broker of its own; "+
			"share one *Broker, or Connect to it", brokers.Redact(cfg.URL), Scheme)
	}
	return open(newStore(cfg), cfg), nil
}

// New opens a broker of its own for tests and programs that need no URL. An empty cfg.URL means mem://. Close it.
func New(cfg brokers.Config) (*Broker, error) {
	if cfg.URL == "" {
		cfg.URL = Scheme + "://"
	}
	resolved, err := cfg.Resolve(driver{}.Params())
	if err != nil {
		return nil, err
	}
	b, err := driver{}.Open(context.Background(), resolved)
	if err != nil {
		return nil, err
	}
	return b.(*Broker), nil
}
