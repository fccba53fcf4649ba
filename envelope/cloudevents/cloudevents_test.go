package cloudevents_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"mime"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/envelope/cloudevents"
)

func Example() {
	order, _ := envelope.New("/checkout", "orders", map[string]int{"order_id": 1234}, nil,
		envelope.ID("id-1"), envelope.CreatedAt(time.Date(2026, 2, 28, 22, 53, 42, 0, time.UTC)),
		envelope.EventNamed("order.created"))

	ev, _ := cloudevents.FromEnvelope(order)
	m, _ := cloudevents.Structured(ev, cloudevents.Kafka)
	fmt.Println(string(m.Payload))

	ev, _ = cloudevents.FromMessage(m)
	back, _ := cloudevents.ToEnvelope(ev)
	fmt.Println(back.MessageID(), back.Queue(), back.Event())
	// Output:
	// {"specversion":"1.0","id":"id-1","source":"/checkout","type":"order.created","subject":"orders","time":"2026-02-28T22:53:42Z","data":{"order_id":1234},"envelopeversion":"1.0"}
	// id-1 orders order.created
}

// forms are the two modes of an event.
var forms = map[string]func(event.Event) (*message.Message, error){
	"structured, Kafka": func(ev event.Event) (*message.Message, error) {
		return cloudevents.Structured(ev, cloudevents.Kafka)
	},
	"structured, AMQP": func(ev event.Event) (*message.Message, error) {
		return cloudevents.Structured(ev, cloudevents.AMQP)
	},
	"binary, Kafka": func(ev event.Event) (*message.Message, error) {
		return cloudevents.Binary(ev, cloudevents.Kafka)
	},
	"binary, AMQP": func(ev event.Event) (*message.Message, error) {
		return cloudevents.Binary(ev, cloudevents.AMQP)
	},
}

func TestRoundTrip(t *testing.T) {
	for formName, form := range forms {
		for dataName, data := range map[string]string{
			"numbers": `{"id":9007199254740993,"big":1e400}`, "odd JSON": "{\"a\" :  \"<&>\\u2028\"}",
			"trailing new line": "{}\n",
			"text":              "plain text", "bytes": "\x00\xff\r\n", "empty": "", "broken JSON": `{"a":`,
			"broken UTF-8": "\"\xff\"",
			"null":         "null",
		} {
			t.Run(formName+"/"+dataName, func(t *testing.T) {
				metadata := map[string]string{
					"correlation_id": "abc-123", "tenant": "a", "Not-A-Name": "b", "retrycount": "99",
					"": "empty",
				}
				e, err := envelope.New("/checkout", "orders", []byte(data), metadata, envelope.EventNamed("order.created"),
					envelope.Delay(300*time.Millisecond))
				require.NoError(t, err)
				e = e.WithIncrementedRetry().WithIncrementedRetry().WithError(envelope.Error{
					Message: `"quoted"`, Code: "500",
					Trace: "a\n\tb",
				})

				ev, err := cloudevents.FromEnvelope(e)
				require.NoError(t, err)
				m, err := form(ev)
				require.NoError(t, err)
				ev, err = cloudevents.FromMessage(m)
				require.NoError(t, err)
				back, err := cloudevents.ToEnvelope(ev)
				require.NoError(t, err)

				require.Equal(t, e.MessageID(), back.MessageID())
				require.True(t, e.Timestamp().Equal(back.Timestamp()))
				require.Equal(t, e.Source(), back.Source())
				require.Equal(t, e.Queue(), back.Queue())
				require.Equal(t, e.Event(), back.Event())
				require.Equal(t, data, string(back.Data()))
				require.Equal(t, metadata, back.Metadata())
				require.Equal(t, 2, back.RetryCount())
				require.Equal(t, e.Err(), back.Err())
				require.Equal(t, 300*time.Millisecond, back.OriginalDelay())
			})
		}
	}
}

func TestBinary_Headers(t *testing.T) {
	e, err := envelope.New("checkout", "orders", []byte("x"), map[string]string{"correlation_id": "c-1"},
		envelope.ID("id-1"), envelope.CreatedAt(time.Date(2026, 2, 28, 22, 53, 42, 0, time.UTC)))
	require.NoError(t, err)
	ev, err := cloudevents.FromEnvelope(e.WithIncrementedRetry())
	require.NoError(t, err)
	m, err := cloudevents.Binary(ev, cloudevents.Kafka)
	require.NoError(t, err)
	require.Equal(t, message.Metadata{
		"ce_specversion": "1.0", "ce_id": "id-1", "ce_source": "checkout", "ce_type": "orders", "ce_subject": "orders",
		"ce_time": "2026-02-28T22:53:42Z", "ce_envelopeversion": "1.0", "ce_retrycount": "1", "ce_correlationid": "c-1",
	}, m.Metadata)
	require.Equal(t, "x", string(m.Payload))
	require.Equal(t, "id-1", envelope.Identify(m), "the pipeline sees the event's id")

	m, err = cloudevents.Binary(ev, cloudevents.AMQP)
	require.NoError(t, err)
	require.Equal(t, "id-1", m.Metadata["cloudEvents_id"])
}

// The AMQP 1.0 spelling is read too.
func TestFromMessage_ColonPrefix(t *testing.T) {
	m := message.NewMessage("", []byte("x"))
	for name, value := range map[string]string{"specversion": "1.0", "id": "1", "source": "/s", "type": "t"} {
		m.Metadata["cloudEvents:"+name] = value
	}
	ev, err := cloudevents.FromMessage(m)
	require.NoError(t, err)
	require.Equal(t, "1", ev.ID())
	require.Equal(t, []byte("x"), ev.Data())
	require.Equal(t, "1", envelope.Identify(m), "another id with each delivery")
	require.Equal(t, "t", envelope.EventName(m))
}

// Some producers write the attribute as a separate header. It was refused as an extension; the content type of the
// message takes precedence.
func TestFromMessage_DataContentTypeAsAHeader(t *testing.T) {
	for contentType, want := range map[string]string{"": "text/plain", "application/xml": "application/xml"} {
		for _, prefix := range []string{"ce_", "cloudEvents_", "cloudEvents:"} {
			m := message.NewMessage("", []byte("x"))
			for name, value := range map[string]string{
				"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "datacontenttype": "text/plain",
			} {
				m.Metadata[prefix+name] = value
			}
			m.Metadata["content-type"] = contentType
			ev, err := cloudevents.FromMessage(m)
			require.NoError(t, err)
			require.Equal(t, want, ev.DataContentType())
			require.Empty(t, ev.Extensions())
		}
	}
}

func TestFromMessage_NoEvent(t *testing.T) {
	_, err := cloudevents.FromMessage(message.NewMessage("u", []byte(`{"specversion":"1.0"}`)))
	require.ErrorIs(t, err, cloudevents.ErrNotCloudEvent)
}

func TestFromMessage_Faults(t *testing.T) {
	for name, test := range map[string]struct {
		headers           message.Metadata
		payload, contains string
	}{
		"no JSON": {
			message.Metadata{"content-type": "application/cloudevents+json; charset=utf-8"},
			`{`,
			"unexpected end",
		},
		"not an object": {message.Metadata{"content-type": "application/cloudevents+json"}, `[]`, "cloudevents: "},
		"no id": {
			message.Metadata{"content-type": "application/cloudevents+json"},
			`{"specversion":"1.0","type":"t","source":"/s"}`, "id: MUST be",
		},
		"another version": {message.Metadata{"ce_specversion": "0.3"}, ``, "must be 1.0"},
		"no type":         {message.Metadata{"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/s"}, ``, "type: MUST be"},
		"time is none": {message.Metadata{
			"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/s", "ce_type": "t",
			"ce_time": "now",
		}, ``, "time"},
		"a name is none": {message.Metadata{
			"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/s", "ce_type": "t",
			"ce_a-b": "x",
		}, ``, "bad key"},
		"content type bad": {message.Metadata{
			"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/s", "ce_type": "t",
			"content-type": "///",
		}, ``, "datacontenttype"},
	} {
		t.Run(name, func(t *testing.T) {
			m := message.NewMessage("u", []byte(test.payload))
			m.Metadata = test.headers
			_, err := cloudevents.FromMessage(m)
			require.ErrorContains(t, err, test.contains)
			require.NotErrorIs(t, err, cloudevents.ErrNotCloudEvent)
		})
	}
}

func TestToEnvelope_HostileExtensions(t *testing.T) {
	ev := event.New()
	ev.SetID("1")
	ev.SetSource("/s")
	ev.SetType("t")
	ev.SetExtension("retrycount", "-1")
	ev.SetExtension("metadata", "not JSON")
	e, err := cloudevents.ToEnvelope(ev)
	require.NoError(t, err)
	m := e.Message()
	c, err := envelope.ReadControl(m)
	require.NoError(t, err)
	require.True(t, c.RetryCountInvalid, "read as strictly as every retry count")
	require.Equal(t, map[string]string{"metadata": "not JSON"}, e.Metadata())

	for _, text := range []string{"10", "P", "PT", "P1Y", "P1M", "PT-1S", strings.Repeat("9", 400)} {
		ev.SetExtension("originaldelay", text)
		_, err = cloudevents.ToEnvelope(ev)
		if text == "PT" {
			continue
		}
		require.ErrorContains(t, err, "not an ISO 8601 duration", text)
	}
	for text, want := range map[string]time.Duration{
		"PT10S": 10 * time.Second, "PT1M0.5S": 60500 * time.Millisecond, "P1DT1H": 25 * time.Hour,
		"P999999999D": envelope.MaxDelay,
	} {
		ev.SetExtension("originaldelay", text)
		e, err = cloudevents.ToEnvelope(ev)
		require.NoError(t, err)
		require.Equal(t, want, e.OriginalDelay())
	}
	_, err = cloudevents.ToEnvelope(event.New())
	require.ErrorContains(t, err, "not a valid event")
}

func TestFromEnvelope_WithoutATypeOrQueue(t *testing.T) {
	e, err := envelope.FromMessage(message.NewMessage("u", []byte("x")))
	require.NoError(t, err)
	_, err = cloudevents.FromEnvelope(e)
	require.ErrorContains(t, err, "cannot become a valid event")
}

func FuzzFromMessage(f *testing.F) {
	f.Add([]byte(`{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"a":1e400},"x":1}`),
		"application/cloudevents+json", "")
	f.Add([]byte(`{"specversion":"1.0","id":"1","source":"/s","type":"t","data_base64":"AA=="}`),
		"application/cloudevents+json", "")
	f.Add([]byte(`{"data":"a","data_base64":1,"specversion":"0.3"}`), "application/cloudevents+json", "")
	f.Add([]byte("x"), "text/plain", "2026-02-28T22:53:42Z")
	f.Add([]byte(`{"specversion":"1.0","id":"0","source":"0","type":"0"}`), "AppliCAtion/Cloudevents+json; a=1", "0")
	f.Add([]byte("{\"specversion\":\"1.0\",\"id\":\"\xb8\",\"source\":\"/s\",\"type\":\"t\"}"), cloudevents.ContentType, "")
	f.Fuzz(func(t *testing.T, payload []byte, contentType, extension string) {
		m := message.NewMessage("u", payload)
		m.Metadata = message.Metadata{
			"content-type": contentType, "ce_specversion": "1.0", "ce_id": "1", "ce_source": "/s", "ce_type": "t",
			"ce_time": "2026-02-28T22:53:42Z", "ce_retrycount": extension, "ce_metadata": extension, "ce_errortrace": extension,
		}
		ev, err := cloudevents.FromMessage(m)
		if err != nil {
			return
		}
		e, err := cloudevents.ToEnvelope(ev)
		if err != nil {
			return
		}
		// An id that does not fit into a header is replaced by a UUID derived from it.
		require.Equal(t, envelope.Identify(message.NewMessage(ev.ID(), nil)), e.MessageID())
		if kind, _, err := mime.ParseMediaType(contentType); err != nil || kind != cloudevents.ContentType {
			require.Equal(t, payload, append([]byte{}, e.Data()...))
		}
	})
}

// An event that was republished, after a retry or from the dead letters, has every attribute that it came with.
func TestRoundTrip_OfAnEvent(t *testing.T) {
	at := time.Date(2026, 2, 28, 22, 53, 42, 5000, time.UTC)
	full := event.New()
	full.SetID("id-1")
	full.SetSource("/checkout")
	full.SetType("order.created")
	full.SetSubject("order-7")
	full.SetTime(at)
	full.SetDataContentType("application/json; charset=utf-8")
	full.SetDataSchema("https://example.com/order.json?v=2")
	for name, value := range map[string]any{
		"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b,c=d",
		"name": "Ada", "partitionkey": "p-1", "sequence": "5", "sampledrate": 10, "paid": true, "dataref": "https://a.b/c",
		"metadata": "not JSON", "correlationid": "c-1", "severitynumber": 9, "data1": "x",
		"expirytime": at, "deviceurl": "urn:a:b", "authtype": "user", "recordedtime": at.Format(time.RFC3339), "empty": "",
	} {
		full.SetExtension(name, value)
	}
	require.NoError(t, full.SetData(full.DataContentType(), json.RawMessage(`{"a":1}`)))

	least := event.New()
	least.SetID("id-2")
	least.SetSource("/")
	least.SetType("t")

	other := full.Clone()
	other.SetExtension("metadata", `{"x-y":"1"}`)
	other.SetExtension("retrycount", "2")
	other.SetSource("urn:checkout")
	require.NoError(t, other.SetData("text/plain", []byte("\x00 1")))

	object, none := least.Clone(), least.Clone()
	object.SetExtension("metadata", `{"tenant":"a"}`)
	none.SetExtension("metadata", "{}")

	for eventName, ev := range map[string]event.Event{"full": full, "least": least, "other": other, "object": object, "{}": none} {
		for formName, form := range forms {
			t.Run(formName+"/"+eventName, func(t *testing.T) {
				m, err := form(ev)
				require.NoError(t, err)
				received, err := cloudevents.FromMessage(m)
				require.NoError(t, err)
				e, err := cloudevents.ToEnvelope(received)
				require.NoError(t, err)
				for range 2 { // the second time, as a retry of the republished event
					back, err := cloudevents.FromEnvelope(e)
					require.NoError(t, err)
					m, err = form(back)
					require.NoError(t, err)
					back, err = cloudevents.FromMessage(m)
					require.NoError(t, err)
					want := attributes(t, ev)
					want["ce_envelopeversion"] = envelope.LayoutVersion
					want["ce_subject"] = cmp.Or(ev.Subject(), ev.Type()) // the queue
					require.Equal(t, want, attributes(t, back))
					require.Equal(t, ev.Data(), back.Data())
					e, err = cloudevents.ToEnvelope(back)
					require.NoError(t, err)
				}
			})
		}
	}
}

// Headers of a message that was no event, in the names of attributes, prevent no event.
func TestFromEnvelope_HeadersThatCannotBeAttributes(t *testing.T) {
	for _, value := range []string{"orders v1", "%zz", "a:b", "a\nb", "\x00", ""} {
		m := message.NewMessage("id-1", []byte(`{"a":1}`))
		m.Metadata = message.Metadata{
			envelope.KeyEvent: "t", envelope.KeyMessageID: "id-1", "ce_dataschema": value, "ce_name": value, "tenant": value,
		}
		e, err := envelope.FromMessage(m)
		require.NoError(t, err)
		ev, err := cloudevents.FromEnvelope(e)
		require.NoError(t, err, "%q", value)
		back, err := cloudevents.ToEnvelope(ev)
		require.NoError(t, err)
		for _, key := range []string{"ce_dataschema", "ce_name", "tenant"} {
			require.Equal(t, value, back.Metadata()[key], "%s %q", key, value)
		}
	}
}

// attributes are those of an event in their text form.
func attributes(t *testing.T, ev event.Event) map[string]string {
	t.Helper()
	m, err := cloudevents.Binary(ev, cloudevents.Kafka)
	require.NoError(t, err)
	return m.Metadata
}
