package config

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/brokers"
)

// Names lists the brokers, sorted.
func (c *Config) Names() []string { return slices.Sorted(maps.Keys(c.Brokers)) }

// Scheme of the broker's URL, by which envelope.Origin names it.
func (b *Broker) Scheme() string { return schemeOf(b.URL) }

func schemeOf(rawURL string) string {
	scheme, _, _ := strings.Cut(rawURL, ":")
	return strings.ToLower(scheme)
}

// IsQueueBroker reports whether a consumer is a queue there, which anybody can be sent a message through by its name.
func (b *Broker) IsQueueBroker() bool { s := b.Scheme(); return s == "amqp" || s == "amqps" }

// Operating is the broker's configuration for reading its dead letter queues and sending messages back.
//
// On RabbitMQ a queue is read by its very name and nothing is declared: it is somebody else's, with arguments that only
// they know. The naming that the file, or the URL, gives is that of the services; explain and topology use it. On the
// other brokers it takes part in a redrive, and stays.
func (b *Broker) Operating() brokers.Config {
	cfg := b.Config
	if !b.IsQueueBroker() {
		return cfg
	}
	cfg.URL = withoutParams(cfg.URL, "naming", "project", "exchange", "queue", "retry", "retry-exchange", "delayed",
		"dead",
		"dead-exchange", "declare", "transport", "delays")
	cfg.Naming = brokers.NameScheme{Preset: "store-only"}
	cfg.Delays = nil
	cfg.Params = maps.Clone(cfg.Params)
	if cfg.Params == nil {
		cfg.Params = brokers.Params{}
	}
	delete(cfg.Params, "transport")
	cfg.Params["declare"] = "read"
	return cfg
}

// withoutParams removes parameters from a URL, in both of their spellings. A URL that cannot be parsed stays: opening
// it explains why.
func withoutParams(rawURL string, names ...string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return rawURL
	}
	query := u.Query()
	for _, name := range names {
		query.Del(name)
		query.Del("x-" + name)
	}
	u.RawQuery = query.Encode()
	return u.String()
}

// check reports what a registered driver has against the configuration; a driver that is not there is for who opens it.
func check(cfg brokers.Config) error {
	d, ok := brokers.Lookup(schemeOf(cfg.URL))
	if !ok {
		return fmt.Errorf("%w: %q: known are %s", brokers.ErrUnknownScheme, schemeOf(cfg.URL),
			strings.Join(brokers.Schemes(), ", "))
	}
	_, err := cfg.Resolve(d.Params())
	return err
}
