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

// descriptions of the fields of brokers.Config and brokers.NameScheme, which have no schema tags.
var descriptions = map[string]string{
	"url":             "The backend's own URI; parameters of redrive are written x-<name>.",
	"username":        "User name, without percent-encoding.",
	"password":        "Password, without percent-encoding; ${NAME} and ${file:/path} are replaced.",
	"name":            "Name of this client in the broker's own tools.",
	"group":           "Consumer group; redrive-collector if not given.",
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
	if broker, ok := s.Properties.Get("brokers"); ok && broker.AdditionalProperties != nil {
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
	for name := s.Properties.Oldest(); name != nil; name = name.Next() {
		if text, ok := descriptions[path+name.Key]; ok {
			name.Value.Description = text
		}
		if name.Value.Properties != nil {
			describe(name.Value, path+name.Key+".")
		}
	}
}
