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

// descriptions of brokers.Config, whose package knows no schemas.
var descriptions = map[string]string{
	"url":             "The backend's own URI; parameters of ours are written x-<name>.",
	"username":        "User name, without percent-encoding.",
	"password":        "Password, without percent-encoding; ${NAME} and ${file:/path} are replaced.",
	"name":            "How the broker's own tools show this client.",
	"group":           "Consumer group; redrive-collector if not given.",
	"concurrency":     "Messages that are handed out at once.",
	"drain_timeout":   "How long a shutdown waits for running work.",
	"publish_timeout": "How long the broker's confirm may take.",
	"delays":          "Delays of the services' retries, for topology and explain.",
	"naming":          "How the services name their queues and topics.",
	"params":          "The driver's own parameters, without x-.",
}

// Schema is the JSON Schema (draft 2020-12) of the file, as indented JSON.
func Schema() []byte {
	r := jsonschema.Reflector{
		FieldNameTag: "yaml", DoNotReference: true, RequiredFromJSONSchemaTags: true, Anonymous: true,
		Mapper: func(t reflect.Type) *jsonschema.Schema {
			switch t {
			case reflect.TypeFor[time.Duration]():
				return &jsonschema.Schema{
					Type: "string", Pattern: `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$|^0$|\$\{`,
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
		for name, text := range descriptions {
			if p, ok := broker.AdditionalProperties.Properties.Get(name); ok {
				p.Description = text
			}
		}
	}
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic("config: " + err.Error()) // of this program's own types
	}
	return append(data, '\n')
}
