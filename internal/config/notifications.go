package config

import (
	"net/url"
	"time"

	"github.com/redrive-go/redrive/dlq/notify"
)

// Notifications configures who is notified of what.
type Notifications struct {
	Receivers []notify.Receiver `yaml:"receivers"`
	Quiet     time.Duration     `yaml:"quiet" jsonschema:"description=How long a cause must have been quiet to be notified as regressed when it comes back\\, in whole hours; 24h if not given."`
	Interval  time.Duration     `yaml:"interval" jsonschema:"description=How often the store is checked; 15s if not given."`
}

func (n *Notifications) validate(f *faults) {
	if err := notify.ValidateReceivers(n.Receivers); err != nil {
		f.add("notifications.receivers: %w", err)
	}
	if n.Quiet < 0 || n.Quiet%time.Hour != 0 || n.Interval < 0 {
		f.add("notifications.quiet %s: must be whole hours; interval %s: must not be negative", n.Quiet, n.Interval)
	}
}

// redactReceiver hides the secrets. The path of a URL is one: Slack's contain a key.
func redactReceiver(r *notify.Receiver) {
	if u, err := url.Parse(r.URL); err == nil && u.Host != "" {
		r.URL = u.Scheme + "://" + u.Host + "/" + hidden
	} else {
		r.URL = hidden
	}
	if r.Secret != "" {
		r.Secret = hidden
	}
}
