package schema_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/envelope/schema"
)

func Example() {
	doc, _ := jsonschema.UnmarshalJSON(strings.NewReader(schema.Envelope()))
	compiler := jsonschema.NewCompiler()
	_ = compiler.AddResource(schema.ID, doc)
	validator := compiler.MustCompile(schema.ID)

	body, _ := jsonschema.UnmarshalJSON(strings.NewReader(`{"message_id":"id-1","retry_count":0}`))
	fmt.Println(validator.Validate(body) == nil)
	// Output: false
}

func compile(t require.TestingT) *jsonschema.Schema {
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(schema.Envelope()))
	require.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	compiler.AssertContent()
	require.NoError(t, compiler.AddResource(schema.ID, doc))
	validator, err := compiler.Compile(schema.ID)
	require.NoError(t, err)
	return validator
}

func validate(t require.TestingT, validator *jsonschema.Schema, body string) error {
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(body))
	require.NoError(t, err)
	return validator.Validate(v)
}

func sample(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("../testdata/" + name)
	require.NoError(t, err)
	return string(b)
}

// The two sample messages, as rendered by this module and as written by hand.
func TestSchema_GoldenSamples(t *testing.T) {
	validator := compile(t)
	for _, name := range []string{"a18_new.json", "a18_failed.json", "a18_pretty_new.json", "a18_pretty_failed.json"} {
		require.NoError(t, validate(t, validator, sample(t, name)), name)
	}
}

// Everything that Message renders in structured mode is valid.
func TestSchema_EverythingRendered(t *testing.T) {
	validator := compile(t)
	rapid.Check(t, func(t *rapid.T) {
		metadata := rapid.MapOf(rapid.StringMatching(`[a-z_]{1,10}`), rapid.String()).Draw(t, "metadata")
		for key := range metadata {
			if envelope.IsOurs(key) {
				delete(metadata, key)
			}
		}
		e, err := envelope.New(rapid.StringMatching(`[a-z-]{0,20}`).Draw(t, "source"), "orders",
			rapid.SliceOf(rapid.Byte()).Draw(t, "data"), metadata, envelope.InMode(envelope.Structured))
		require.NoError(t, err)
		m := e.Message()
		require.NoError(t, validate(t, validator, string(m.Payload)))

		failed := envelope.RecordFailure(m, envelope.Failure{
			Err: envelope.Error{
				Message: rapid.String().Draw(t, "message"), Code: rapid.String().Draw(t, "code"),
				Trace: rapid.String().Draw(t, "trace"),
			},
			Retry: rapid.IntRange(0, envelope.MaxRetryCount).Draw(t, "retry"),
		})
		require.NoError(t, validate(t, validator, string(failed.Payload)))
	})
}

// Each fault is rejected, with its location.
func TestSchema_Rejections(t *testing.T) {
	validator := compile(t)
	fresh, failed := sample(t, "a18_new.json"), sample(t, "a18_failed.json")
	for name, test := range map[string]struct{ body, old, new, at, contains string }{
		"code is a number": {failed, `"code":"500"`, `"code":500`, "at '/error/code'", "got number, want string"},
		"error without a trace": {
			failed, `,"trace":"#0 OrderHandler.php(42): charge()\n#1 {main}"`, ``, "at '/error'",
			"missing property 'trace'",
		},
		"error is a string": {fresh, `"error":null`, `"error":"boom"`, "at '/error'", "got string"},
		"negative retry count": {
			fresh, `"retry_count":0`, `"retry_count":-1`, "at '/retry_count'",
			"minimum: got -1, want 0",
		},
		"retry count is a fraction": {
			fresh, `"retry_count":0`, `"retry_count":3.7`, "at '/retry_count'",
			"got number, want integer",
		},
		"retry count is a string": {
			fresh, `"retry_count":0`, `"retry_count":"0"`, "at '/retry_count'",
			"got string, want integer",
		},
		"retry count is huge":      {fresh, `"retry_count":0`, `"retry_count":1000001`, "at '/retry_count'", "maximum"},
		"timestamp without offset": {fresh, `+00:00"`, `"`, "at '/timestamp'", "date-time"},
		"another version":          {fresh, `"1.0"`, `"2.0"`, "at '/version'", "does not match pattern"},
		"version is a number":      {fresh, `"1.0"`, `1.0`, "at '/version'", "got number, want string"},
		"empty id":                 {fresh, `550e8400-e29b-41d4-a716-446655440000`, ``, "at '/message_id'", "minLength"},
		"no queue":                 {fresh, `"queue":"orders",`, ``, "at ''", "missing property 'queue'"},
		"metadata is a list": {
			fresh, `"metadata":{"correlation_id":"abc-123","priority":"high"}`, `"metadata":[]`,
			"at '/metadata'", "got array, want object",
		},
		"data in both forms": {fresh, `"data":`, `"data_base64":"AA==","data":`, "at ''", "oneOf"},
		"data in no form":    {fresh, `"data":`, `"payload":`, "at ''", "missing property 'data'"},
		"data_base64 is none": {
			strings.Replace(fresh, `"data":`, `"other":`, 1), `{`, `{"data_base64":"?",`,
			"at '/data_base64'", "pattern",
		},
	} {
		t.Run(name, func(t *testing.T) {
			body := strings.Replace(test.body, test.old, test.new, 1)
			require.NotEqual(t, test.body, body)
			err := validate(t, validator, body)
			require.ErrorContains(t, err, test.at)
			require.ErrorContains(t, err, test.contains)
		})
	}
}
