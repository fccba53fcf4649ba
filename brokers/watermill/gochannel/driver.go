package gochannel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/redrive-go/redrive/brokers"
	wbroker "github.com/redrive-go/redrive/brokers/watermill"
)

// Scheme of the URLs that this driver opens.
const Scheme = "gochannel"

func init() { brokers.Register(Scheme, Driver{}) }

// Driver opens gochannel:// URLs.
type Driver struct{}

var _ brokers.Driver = Driver{}

// Params implements brokers.Driver.
func (Driver) Params() []brokers.Param { return wbroker.Params() }

// Open implements brokers.Driver.
func (Driver) Open(_ context.Context, cfg brokers.Config) (brokers.Broker, error) {
	return New(Config{Broker: cfg}) //nolint:contextcheck // the hub outlives the context it is opened with
}

// Config is for programs that open the broker themselves.
type Config struct {
	// Broker has the URL and the settings of every broker. An empty Broker.URL means gochannel://.
	Broker brokers.Config
	// PubSub is a GoChannel of the caller, who closes it after the broker; the URL then has no name. Messages published
	// while a group has no subscription are lost to that group, unless it is Persistent.
	PubSub *gochannel.GoChannel
	// Delays keeps delayed messages. The caller closes it. Defaults to a broker in memory, which brokers of one name
	// share.
	Delays brokers.Broker
	// Server identifies the GoChannel among those that share Delays. Defaults to the name of the URL; without one it is
	// required with Delays.
	Server string
}

// New opens a broker. Close it.
func New(cfg Config) (brokers.Broker, error) {
	cfg.Broker.URL = cmp.Or(cfg.Broker.URL, Scheme+"://")
	var err error
	if cfg.Broker, err = cfg.Broker.Resolve(Driver{}.Params()); err != nil {
		return nil, err
	}
	name, err := nameOf(cfg.Broker.URL)
	if err != nil {
		return nil, err
	}
	if name != "" && cfg.PubSub != nil {
		return nil, errors.New("gochannel: the URL has a name and PubSub is set: " +
			"only one of them can determine what is shared")
	}
	h, err := enter(name, cfg)
	if err != nil {
		return nil, err
	}
	delays, server := cfg.Delays, cmp.Or(cfg.Server, name)
	if delays == nil {
		delays, server = h.delays, Scheme // which no other hub shares
	}
	return wbroker.Open(context.Background(), wbroker.Config{
		Publisher: publisher{h},
		NewSubscriber: func(group string) (message.Subscriber, error) {
			return &subscriber{hub: h, group: group, closing: make(chan struct{})}, nil
		},
		Delays:     delays,
		Server:     server,
		Initialize: func(_ context.Context, topic, group string) error { return h.initialize(topic, group) },
		Broker:     cfg.Broker,
	}, Driver{}.Params(), func(context.Context) (string, error) {
		return "", errors.New("neither the URL nor Config.Server names the GoChannel, and others may share its Delays")
	})
}

func nameOf(url string) (string, error) {
	name, _, _ := strings.Cut(strings.TrimPrefix(url, Scheme+"://"), "?")
	if name = strings.TrimSuffix(name, "/"); strings.ContainsAny(name, "/@") {
		return "", fmt.Errorf("gochannel: %s: write %s://name, and no path or user", brokers.Redact(url), Scheme)
	}
	return name, nil
}
