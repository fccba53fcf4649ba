package config

import (
	"encoding/json"
	"reflect"
	"time"

	"github.com/invopop/jsonschema"

	"github.com/redrive-go/redrive/brokers"
)

// SchemaID is the $id of the schema.
const SchemaID = "https://github.com/redrive-go/redrive/internal/config/schema.json"

// descriptions of the fields of the library's types: of brokers.Config and brokers.NameScheme without a path.
var descriptions = map[string]string{ //nolint:gosec // G101: descriptions of secrets
	"url":             "The backend's own URI; parameters of redrive are written x-<name>.",
	"username":        "User name, without percent-encoding.",
	"password":        "Password, without percent-encoding; ${NAME} and ${file:/path} are replaced.",
	"name":            "Name of this client in the broker's own tools.",
	"group":           "Consumer group of the collector, redrive-collector if not given; topology and explain use it for services.",
	"concurrency":     "Messages that are handled at once.",
	"drain_timeout":   "How long a shutdown waits for running work.",
	"publish_timeout": "How long the broker may take to confirm.",
	"delays":          "Delays of the services' retries, for topology and explain.",
	"naming":          "How the services name their queues and topics.",
	"refuse_unrouted": "Refuse to publish an event without a subscriber.",
	"params":          "The driver's own parameters, without x-.",

	"naming.preset":         "Naming scheme that the other keys change; default if not given.",
	"naming.project":        "Value of {project}, which keeps projects on one broker apart.",
	"naming.exchange":       "RabbitMQ exchange to which producers publish.",
	"naming.queue":          "Template of the queue or topic that a consumer reads.",
	"naming.retry":          "Template of the queue or topic where a message waits for its retry.",
	"naming.retry_exchange": "RabbitMQ exchange in front of the retry queues; the default exchange if not given.",
	"naming.delayed":        "Template of the queue or topic for delayed first deliveries; the retry's if not given.",
	"naming.dead":           "Template of the dead letter queue or topic.",
	"naming.dead_exchange":  "RabbitMQ exchange in front of the dead letter queues; the default exchange if not given.",
	"naming.patterns":       "Topics are event names, to which consumers subscribe by AMQP patterns.",

	"redrive.rules.name":             "Appears in the audit log.",
	"redrive.rules.reason":           "Why the messages died; reason to cause select the dead letters, and at least one of them is required.",
	"redrive.rules.error_class":      "Class of the last error.",
	"redrive.rules.error_code":       "Code of the last error.",
	"redrive.rules.fingerprint":      "Fingerprint of the cause.",
	"redrive.rules.handler":          "Handler in which the messages failed.",
	"redrive.rules.topic":            "Topic from which they came.",
	"redrive.rules.cause":            "Text that the error contains, with its numbers and ids removed.",
	"redrive.rules.after":            "Pause between death and redrive, doubled by each redrive; 1m if not given.",
	"redrive.rules.max_after":        "Longest pause; 1h if not given.",
	"redrive.rules.redrives":         "Maximum redrives of a message; 3 if not given.",
	"redrive.rules.rate":             "Maximum messages per second; 10 if not given.",
	"redrive.rules.close_on_publish": "Close the entry when the broker has confirmed the message, without waiting for its consumer.",

	"retention.resolved":   "How long RESOLVED dead letters are kept: 90d is 90 days; forever if not given.",
	"retention.discarded":  "How long DISCARDED dead letters are kept; forever if not given.",
	"retention.no_archive": "Remove them without a copy in the archive.",

	"notifications.receivers.name":     "Name of the receiver, by which the store remembers what it was sent.",
	"notifications.receivers.url":      "https, or http on this machine. A Slack URL is a secret.",
	"notifications.receivers.format":   "webhook (default), signed JSON, or slack.",
	"notifications.receivers.secret":   "Key that signs webhooks; required for them.",
	"notifications.receivers.on":       "What to send: new_cause, regressed_cause, run_stopped, run_awaits_approval, store_down; all if not given.",
	"notifications.receivers.per_hour": "Maximum notifications per hour; 30 if not given.",

	"server.limits.body":    "Largest request body in bytes; 4 MiB if not given.",
	"server.limits.import":  "Largest import in bytes; 1 GiB if not given.",
	"server.limits.rate":    "Requests a second of one client; 50 if not given; a negative number sets no limit.",
	"server.limits.burst":   "Requests of one client at once; 200 if not given.",
	"server.limits.streams": "Progress streams at once; 100 if not given.",
	"server.limits.timeout": "How long a request may take, except exports, imports and purges; 30s if not given.",
}

// Schema is the JSON Schema (draft 2020-12) of the file, as indented JSON.
func Schema() []byte {
	r := jsonschema.Reflector{
		FieldNameTag: "yaml", DoNotReference: true, RequiredFromJSONSchemaTags: true, Anonymous: true,
		Mapper: func(t reflect.Type) *jsonschema.Schema {
			switch t {
			case reflect.TypeFor[time.Duration]():
				return &jsonschema.Schema{
					Type: "string", Pattern: `^[0-9]+d$|^([0-9]+d)?([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$|^0$|\$\{`,
					Examples: []any{"30s"},
				}
			case reflect.TypeFor[brokers.Params]():
				return &jsonschema.Schema{Type: "object", AdditionalProperties: jsonschema.TrueSchema}
			}
			return nil
		},
	}
	s := r.Reflect(&Config{})
	s.ID, s.Title = SchemaID, "Configuration of redrive"
	describe(s, "")
	if broker, ok := s.Properties.Get("brokers"); ok {
		describe(broker.AdditionalProperties, "")
	}
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic("config: " + err.Error()) // the types are ours
	}
	return append(data, '\n')
}

// describe sets the descriptions of the properties of s, which is at path.
func describe(s *jsonschema.Schema, path string) {
	if s == nil || s.Properties == nil {
		return
	}
	for name := s.Properties.Oldest(); name != nil; name = name.Next() {
		if text, ok := descriptions[path+name.Key]; ok {
			name.Value.Description = text
		}
		describe(name.Value, path+name.Key+".")
		describe(name.Value.Items, path+name.Key+".")
	}
}
