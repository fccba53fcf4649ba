package brokers

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/envelope"
)

// Defaults of a [Config].
const (
	DefaultConcurrency    = 1
	DefaultDrainTimeout   = 25 * time.Second // below the 30 s after which Watermill's router gives up
	DefaultPublishTimeout = 10 * time.Second
)

// Config is everything that a broker URL can express, for programs that read a file or are configured in code. Package
// brokerconfig reads it from YAML. The zero value of a field means its default.
//
// Printing a Config, or logging it with slog, shows no password.
type Config struct {
	// URL of the broker. Required. Its parameters override the other fields.
	URL string `yaml:"url"`
	// Username and Password are added to the URL, and need no percent-encoding here. If empty, the URL's are used.
	Username string `yaml:"username"`
	Password string `yaml:"password"`
	// Name identifies this client in the broker's own tools: connection name, client id. Defaults to the program's name.
	Name string `yaml:"name"`
	// Group is the default consumer group of subscribers. If empty, the driver's default applies; Kafka requires one.
	Group string `yaml:"group"`
	// Concurrency is how many handlers run at once per subscription, at most 100,000. Defaults to 1, which keeps messages
	// in order.
	Concurrency int `yaml:"concurrency"`
	// DrainTimeout bounds how long Close waits for running handlers. It must be shorter than the router's CloseTimeout.
	// Defaults to 25 s.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
	// PublishTimeout bounds the wait for the broker's confirm of one Publish, Reschedule or DeadLetter. Defaults to 10
	// s.
	PublishTimeout time.Duration `yaml:"publish_timeout"`
	// Delays that are known in advance, such as the steps of a backoff. Brokers that wait in queues prepare one for each,
	// so that the first failure declares nothing. Other delays work too.
	Delays []time.Duration `yaml:"delays"`
	// Naming determines the names of queues. The zero value means [DefaultNames].
	Naming NameScheme `yaml:"naming"`
	// RefuseUnrouted makes Publish fail with [ErrUnroutable] for an event that no service has subscribed to. By default
	// this is not an error, as on any bus. Without patterns the broker decides about a topic without readers.
	RefuseUnrouted bool `yaml:"refuse_unrouted"`
	// Params are the driver's own parameters, by name without x-.
	Params Params `yaml:"params"`
	// DeadLetters stores the dead letters that the broker itself creates, before a handler or a middleware sees the
	// message: messages that kill their consumer's process, or that cannot be read. Use the pipeline's DeadLetters, so
	// that all dead letters are in one place: letters.DeadLetter. It returns nil when the dead letter is durable, and may
	// be called again with the same one. If it is nil, fails or takes longer than PublishTimeout, the broker's own
	// DeadLetter takes over.
	DeadLetters func(ctx context.Context, d *envelope.DeadLetter) error `yaml:"-"`
	// Logger receives errors that have no caller to return to. Defaults to slog.Default(). [envelope.SlogLogger] adapts a
	// watermill.LoggerAdapter.
	Logger *slog.Logger `yaml:"-"`
}

// Redacted returns c with everything secret replaced.
func (c Config) Redacted() Config {
	if c.URL != "" {
		c.URL = Redact(c.URL)
	}
	if c.Password != "" {
		c.Password = "xxxxx"
	} else if c.Username != "" && strings.HasPrefix(c.URL, "nats") { // it may be a token; see isToken
		c.Username = "xxxxx"
	}
	c.Params = maps.Clone(c.Params)
	for name, value := range c.Params {
		c.Params[name] = shownValue(name, value)
	}
	return c
}

// String shows the configuration without its secrets.
func (c Config) String() string {
	c = c.Redacted()
	var out strings.Builder
	fmt.Fprintf(&out, "url=%s", c.URL)
	for _, f := range []struct{ name, value string }{
		{"username", c.Username},
		{"password", c.Password},
		{"name", c.Name},
		{"group", c.Group},
		{"naming", c.Naming.Preset},
		{"project", c.Naming.Project},
	} {
		if f.value != "" {
			fmt.Fprintf(&out, " %s=%s", f.name, f.value)
		}
	}
	if c.Concurrency != 0 {
		fmt.Fprintf(&out, " concurrency=%d", c.Concurrency)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Params)) {
		fmt.Fprintf(&out, " %s=%s", name, c.Params[name])
	}
	return out.String()
}

// GoString keeps %#v from showing secrets.
func (c Config) GoString() string { return "brokers.Config{" + c.String() + "}" }

// LogValue keeps slog from showing secrets.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }
