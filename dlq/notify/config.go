package notify

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redact"
)

// NoticeKind is the subject of a notice.
type NoticeKind string

// The kinds of notices.
const (
	// NewCause is the first dead letter of a cause.
	NewCause NoticeKind = "new_cause"
	// RegressedCause is a cause that is back after [Config.Quiet].
	RegressedCause NoticeKind = "regressed_cause"
	// RunStopped is a redrive run that stopped automatically.
	RunStopped NoticeKind = "run_stopped"
	// RunAwaitsApproval is a redrive run that waits for a second person.
	RunAwaitsApproval NoticeKind = "run_awaits_approval"
	// StoreDown is a store that does not respond.
	StoreDown NoticeKind = "store_down"
)

// Kinds are all kinds.
var Kinds = []NoticeKind{NewCause, RegressedCause, RunStopped, RunAwaitsApproval, StoreDown}

// Format is what is posted to a receiver.
type Format string

// The formats.
const (
	Webhook Format = "webhook"
	Slack   Format = "slack"
)

// Config configures a [Notifier].
type Config struct {
	// Store has the dead letters, and records which notices were delivered. Required.
	Store dlq.Store
	// Publisher publishes the notices of each receiver, on [Topic]. Required.
	Publisher message.Publisher
	// Receivers get the notices. At least one is required.
	Receivers []Receiver
	// Redaction has the rules for viewers; nil hides nothing.
	Redaction *redact.Rules
	// PublicURL is where people reach the dashboard, for links. If empty, notices have no links.
	PublicURL string
	// Quiet is how long a cause must have been quiet to count as back. Whole hours. Defaults to 24 h.
	Quiet time.Duration
	// Retention is the store's retention. A cause is not reported as back if it may have purged entries that died within
	// Quiet.
	Retention dlq.Retention
	// Interval is the time between checks of the store. Defaults to 15 s.
	Interval time.Duration
	// Client posts to the receivers. Defaults to one with a timeout of 10 s. Redirects are not followed.
	Client *http.Client
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Receiver is a recipient of notices.
type Receiver struct {
	// Name is required, unique, and must not change: the store records deliveries by it.
	Name string `yaml:"name" jsonschema:"required"`
	// URL is posted to: https, or http on this machine. Required.
	URL string `yaml:"url" jsonschema:"required"`
	// Format is Webhook by default: the notice is posted, signed with Secret, which is then required. Slack posts the text
	// in the format of Slack's incoming webhooks.
	Format Format `yaml:"format" jsonschema:"enum=webhook,enum=slack"`
	Secret string `yaml:"secret"`
	// On are the kinds to send. Defaults to all [Kinds].
	On []NoticeKind `yaml:"on"`
	// PerHour is the maximum number of notices per hour; more wait for the next one. Those that the store is down are
	// counted separately. Defaults to 30.
	PerHour int `yaml:"per_hour" jsonschema:"minimum=1"`
}

const (
	defaultQuiet    = 24 * time.Hour
	defaultInterval = 15 * time.Second
	defaultPerHour  = 30
	defaultTimeout  = 10 * time.Second
	maxName         = 100
)

func (c *Config) setDefaults() {
	c.Logger = cmp.Or(c.Logger, slog.Default())
	c.Quiet, c.Interval = cmp.Or(c.Quiet, defaultQuiet), cmp.Or(c.Interval, defaultInterval)
	c.PublicURL = strings.TrimSuffix(c.PublicURL, "/")
	client := http.Client{Timeout: defaultTimeout}
	if c.Client != nil {
		client = *c.Client
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.Client = &client
	c.Receivers = slices.Clone(c.Receivers)
	for i := range c.Receivers {
		r := &c.Receivers[i]
		r.PerHour = cmp.Or(r.PerHour, defaultPerHour)
		if len(r.On) == 0 {
			r.On = Kinds
		}
	}
}

func (c *Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Store == nil {
		bad("Store: required")
	}
	if c.Publisher == nil {
		bad("Publisher: required")
	}
	if c.Quiet < time.Hour || c.Quiet%time.Hour != 0 {
		bad("Quiet %s: whole hours, one at least", c.Quiet)
	}
	if c.Interval < 0 {
		bad("Interval %s: must not be negative", c.Interval)
	}
	if len(c.Receivers) == 0 {
		bad("Receivers: required")
	}
	return errors.Join(append(errs, ValidateReceivers(c.Receivers))...)
}

// ValidateReceivers reports the faults of all receivers, and two of one name.
func ValidateReceivers(receivers []Receiver) error {
	var errs []error
	names := map[string]bool{}
	for i := range receivers {
		r := &receivers[i]
		if names[r.Name] {
			errs = append(errs, fmt.Errorf("two receivers are named %q", r.Name))
		}
		names[r.Name] = true
		errs = append(errs, r.Validate())
	}
	return errors.Join(errs...)
}

// Validate reports the receiver's faults. The error does not show its URL, which is a secret with Slack.
func (r *Receiver) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("receiver %q: "+format, append([]any{r.Name}, args...)...))
	}
	if r.Name == "" || len(r.Name) > maxName {
		bad("a name of 1 to %d bytes is required", maxName)
	}
	if err := checkURL(r.URL); err != nil {
		bad("%w", err)
	}
	switch _, err := key(r.Secret); {
	case r.Format != Slack && r.Secret == "":
		bad("a secret is required to sign the webhook")
	case err != nil:
		bad("the secret is not base64 after whsec_")
	}
	if r.Format != "" && r.Format != Webhook && r.Format != Slack {
		bad("format %q: webhook or slack", r.Format)
	}
	for _, kind := range r.On {
		if !slices.Contains(Kinds, kind) {
			bad("on %q: one of %v", kind, Kinds)
		}
	}
	if r.PerHour < 0 {
		bad("per_hour %d: must not be negative", r.PerHour)
	}
	return errors.Join(errs...)
}

// checkURL rejects URLs that would send a notice unencrypted over a network.
func checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return errors.New("the URL cannot be read")
	}
	if u.User != nil {
		return errors.New("a URL with a user name or password: sign with a secret")
	}
	ip := net.ParseIP(u.Hostname())
	local := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	if u.Scheme != "https" && (u.Scheme != "http" || !local) {
		return errors.New("the URL must be https, or http to this machine")
	}
	return nil
}

// key is the key for signing a webhook.
func key(secret string) ([]byte, error) {
	if encoded, ok := strings.CutPrefix(secret, "whsec_"); ok {
		return base64.StdEncoding.DecodeString(encoded)
	}
	return []byte(secret), nil
}
