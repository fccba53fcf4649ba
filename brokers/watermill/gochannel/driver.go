package gochannel

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
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

// hub is shared by the brokers of one name.
type hub struct {
	key    any // nil: not shared
	pubSub *gochannel.GoChannel
	owned  bool
	delays brokers.Broker
	ctx    context.Context // of the groups' subscriptions
	cancel context.CancelFunc
	ended  sync.WaitGroup

	mu     sync.Mutex
	users  int
	groups map[groupKey]*group
}

type groupKey struct{ topic, group string }

// hubs are those of this process, by name or by the caller's GoChannel.
var hubs = struct {
	sync.Mutex
	shared map[any]*hub
}{shared: map[any]*hub{}}

// enter returns the hub of a name, a new one for the first.
func enter(name string, cfg Config) (*hub, error) {
	var key any
	switch {
	case cfg.PubSub != nil:
		key = cfg.PubSub
	case name != "":
		key = name
	}
	hubs.Lock()
	defer hubs.Unlock()
	if h := hubs.shared[key]; h != nil {
		h.users++
		return h, nil
	}
	delays, err := memory.New(brokers.Config{Logger: cfg.Broker.Logger})
	if err != nil {
		return nil, err
	}
	h := &hub{key: key, pubSub: cfg.PubSub, delays: delays, users: 1, groups: map[groupKey]*group{}}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	if h.pubSub == nil {
		h.owned = true
		h.pubSub = gochannel.NewGoChannel(gochannel.Config{Persistent: true}, wbroker.Logger(cfg.Broker.Logger))
	}
	if key != nil {
		hubs.shared[key] = h
	}
	return h, nil
}

// leave closes the hub with its last broker.
func (h *hub) leave() error {
	hubs.Lock()
	h.users--
	last := h.users == 0
	if last && h.key != nil {
		delete(hubs.shared, h.key)
	}
	hubs.Unlock()
	if !last {
		return nil
	}
	h.cancel()
	var err error
	if h.owned {
		err = h.pubSub.Close()
	}
	h.ended.Wait()
	return errors.Join(err, h.delays.Close())
}

// initialize keeps messages for a group from then on. A persistent GoChannel does so for all groups.
func (h *hub) initialize(topic, group string) error {
	if h.owned {
		return nil
	}
	_, err := h.join(topic, group)
	return err
}

func (h *hub) join(topic, name string) (<-chan *message.Message, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := groupKey{topic, name}
	if g := h.groups[key]; g != nil {
		return g.out, nil
	}
	in, err := h.pubSub.Subscribe(h.ctx, topic)
	if err != nil {
		return nil, err
	}
	g := &group{out: make(chan *message.Message)}
	h.groups[key] = g
	h.ended.Go(func() { g.pass(h.ctx, in) })
	return g.out, nil
}

// group is a subscription of GoChannel that the members of a group share.
type group struct{ out chan *message.Message }

// pass buffers messages that no member has taken yet. GoChannel itself would wait for the reader under a lock, which
// virtual time does not see.
func (g *group) pass(ctx context.Context, in <-chan *message.Message) {
	var waiting []*message.Message
	for {
		var (
			out  chan *message.Message
			next *message.Message
		)
		if len(waiting) > 0 {
			out, next = g.out, waiting[0]
		}
		select {
		case m, ok := <-in:
			if !ok {
				return
			}
			m.Payload = bytes.Clone(m.Payload) // the groups' copies share it
			waiting = append(waiting, m)
		case out <- next:
			waiting[0] = nil
			waiting = waiting[1:]
		case <-ctx.Done():
			for range in { // until GoChannel has closed it
			}
			return
		}
	}
}

// publisher publishes to the hub. Closing it closes a broker.
type publisher struct{ hub *hub }

// Publish implements message.Publisher.
func (p publisher) Publish(topic string, messages ...*message.Message) error {
	copies := make([]*message.Message, len(messages))
	for i, m := range messages {
		copies[i] = m.Copy()
		copies[i].Payload = bytes.Clone(m.Payload) // GoChannel shares it with the caller
	}
	return p.hub.pubSub.Publish(topic, copies...)
}

// Close implements message.Publisher.
func (p publisher) Close() error { return p.hub.leave() }

// subscriber reads for one group.
type subscriber struct {
	hub     *hub
	group   string
	closing chan struct{}
	close   sync.Once
	ended   sync.WaitGroup
}

// Subscribe implements message.Subscriber.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := s.hub.join(topic, s.group)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	s.ended.Go(func() {
		defer close(out)
		for {
			select {
			case m := <-in:
				select {
				case out <- m:
					continue
				case <-ctx.Done():
				case <-s.closing:
				}
				m.Nack() // another member receives it
				return
			case <-ctx.Done():
				return
			case <-s.closing:
				return
			}
		}
	})
	return out, nil
}

// Close implements message.Subscriber.
func (s *subscriber) Close() error {
	s.close.Do(func() { close(s.closing) })
	s.ended.Wait()
	return nil
}
