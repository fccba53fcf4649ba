package config

import (
	"cmp"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/brokers"
)

// Names lists the brokers, sorted.
func (c *Config) Names() []string { return slices.Sorted(maps.Keys(c.Brokers)) }

// Scheme is the scheme of the broker's URL, which is its name in envelope.Origin.
func (b *Broker) Scheme() string {
	scheme, _, _ := strings.Cut(b.URL, ":")
	return strings.ToLower(scheme)
}

// IsQueueBroker reports whether a consumer of this broker is a queue, to which any message can be sent by name.
func (b *Broker) IsQueueBroker() bool { s := b.Scheme(); return s == "amqp" || s == "amqps" }

// Operating returns the broker's configuration for reading its dead letter queues and sending messages back. Its group
// defaults to DefaultGroup, which must not get into the names of the services' queues.
//
// On RabbitMQ the queue's name is taken literally and nothing is declared: the queue belongs to another service, with
// arguments that only that service knows. The naming of the file or the URL is the services'; explain and topology use
// it. On the other brokers a redrive needs the naming, so it is kept.
func (b *Broker) Operating() brokers.Config {
	cfg := b.Config
	cfg.Group = cmp.Or(cfg.Group, DefaultGroup)
	if !b.IsQueueBroker() {
		return cfg
	}
	cfg.URL = withoutParams(cfg.URL, "naming", "project", "exchange", "queue", "retry", "retry-exchange", "delayed",
		"dead", "dead-exchange", "declare", "transport", "delays")
	cfg.Naming = brokers.NameScheme{Preset: "store-only"}
	cfg.Delays = nil
	cfg.Params = brokers.Params{}
	maps.Copy(cfg.Params, b.Params)
	delete(cfg.Params, "transport")
	cfg.Params["declare"] = "read"
	return cfg
}

// withoutParams removes parameters from a URL, in both spellings. A URL that cannot be parsed is left for the open to
// report.
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
