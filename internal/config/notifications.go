package config

import (
	"fmt"
	"net/url"
	"time"

	"github.com/redrive-go/redrive/dlq/notify"
)

// Notifications configures who is notified of what.
type Notifications struct {
	Receivers []NotificationReceiver `yaml:"receivers"`
	Quiet     time.Duration          `yaml:"quiet" jsonschema:"description=How long a cause must have been quiet to be notified as regressed when it comes back\\, in whole hours; 24h if not given."`
	Interval  time.Duration          `yaml:"interval" jsonschema:"description=How often the store is checked; 15s if not given."`
}

// NotificationReceiver is a webhook.
type NotificationReceiver struct {
	Name    string   `yaml:"name" jsonschema:"required,description=Name of the receiver\\, by which the store remembers what it was sent."`
	URL     string   `yaml:"url" jsonschema:"required,description=https\\, or http on this machine. A Slack URL is a secret."`
	Format  string   `yaml:"format" jsonschema:"enum=webhook,enum=slack,description=webhook (default)\\, signed JSON\\, or slack."`
	Secret  string   `yaml:"secret" jsonschema:"description=Key that signs webhooks; required for them."`
	On      []string `yaml:"on" jsonschema:"description=What to send: new_cause\\, regressed_cause\\, run_stopped\\, run_awaits_approval\\, store_down; all if not given."`
	PerHour int      `yaml:"per_hour" jsonschema:"minimum=1,description=Most notifications an hour; 30 if not given."`
}

const formatSlack = "slack"

// NotificationReceivers converts the receivers to those of package notify.
func (n *Notifications) NotificationReceivers() ([]notify.Receiver, error) {
	var receivers []notify.Receiver
	names := map[string]bool{}
	for i := range n.Receivers {
		r := &n.Receivers[i]
		at := fmt.Sprintf("notifications.receivers[%d]", i)
		if r.Format != "" && r.Format != "webhook" && r.Format != formatSlack {
			return nil, fmt.Errorf("%s.format: %q: webhook or slack", at, r.Format)
		}
		if names[r.Name] {
			return nil, fmt.Errorf("%s: duplicate name %s", at, r.Name)
		}
		names[r.Name] = true
		receiver := notify.Receiver{
			Name: r.Name, URL: r.URL, Slack: r.Format == formatSlack, Secret: r.Secret,
			PerHour: r.PerHour,
		}
		for _, kind := range r.On {
			receiver.On = append(receiver.On, notify.NoticeKind(kind))
		}
		if err := receiver.Validate(); err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		receivers = append(receivers, receiver)
	}
	if n.Quiet < 0 || n.Quiet%time.Hour != 0 || n.Interval < 0 {
		return nil, fmt.Errorf("notifications: quiet %s: whole hours; interval %s: must not be negative", n.Quiet, n.Interval)
	}
	return receivers, nil
}

// redact hides the secrets. The path of a URL is one: Slack's contain a key.
func (r *NotificationReceiver) redact() {
	if u, err := url.Parse(r.URL); err == nil && u.Host != "" {
		r.URL = u.Scheme + "://" + u.Host + "/" + hidden
	} else {
		r.URL = hidden
	}
	if r.Secret != "" {
		r.Secret = hidden
	}
}
