package envelope_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
)

// wireEnvelope reads the body with encoding/json: the benchmarks compare with it.
type wireEnvelope struct {
	MessageID  string          `json:"message_id"`
	Timestamp  string          `json:"timestamp"`
	Version    string          `json:"version"`
	Source     string          `json:"source"`
	Queue      string          `json:"queue"`
	Data       json.RawMessage `json:"data"`
	Metadata   map[string]any  `json:"metadata"`
	Error      *envelope.Error `json:"error"`
	RetryCount int             `json:"retry_count"`
}

func binaryMessage() *message.Message {
	m := message.NewMessage("0198c1f2-7b0a-7cc4-9d4e-000000000001", orderData(2048))
	m.Metadata = message.Metadata{
		envelope.KeyMessageID:     "0198c1f2-7b0a-7cc4-9d4e-000000000001",
		envelope.KeyTimestamp:     "2026-02-28T22:53:42+00:00",
		envelope.KeyVersion:       envelope.LayoutVersion,
		envelope.KeySource:        "checkout-api",
		envelope.KeyQueue:         "orders",
		envelope.KeyRetryCount:    "2",
		envelope.KeyOriginalDelay: "10000",
		"correlation_id":          "abc-123",
	}
	return m
}

// orderData returns JSON of at least size bytes that looks like orders: short strings, numbers, nested objects.
func orderData(size int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"order_id":1234567,"customer":{"name":"Maria da Conceição","cpf":"529.982.247-25"},"items":[`)
	for i := 0; b.Len() < size-40; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"sku":"SKU-%04d","title":"Cotton shirt, size %d","quantity":%d,"price":%d.90,"gift":false}`, i, i%5,
			i%3+1, i*7%90)
	}
	b.WriteString(`],"total":99.90}`)
	return b.Bytes()
}

func structuredOrder(size int) *message.Message {
	body := envelopeBody(string(orderData(size-200)), `{"correlation_id":"abc-123","priority":"high"}`)
	m := message.NewMessage("uuid", []byte(body))
	m.Metadata[envelope.KeyContentType] = envelope.ContentType
	return m
}

// The claim of ReadControl's documentation.
func TestReadControl_BinaryDoesNotAllocate(t *testing.T) {
	m := binaryMessage()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if c, err := envelope.ReadControl(m); err != nil || c.RetryCount != 2 {
			t.Fatal(c, err)
		}
	}))
}

func BenchmarkReadControl_Binary(b *testing.B) {
	m := binaryMessage()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := envelope.ReadControl(m); err != nil {
			b.Fatal(err)
		}
	}
}

// A foreign producer's message, whose JSON must be scanned because it could be an envelope.
func BenchmarkReadControl_ForeignJSON(b *testing.B) {
	m := message.NewMessage("0198c1f2-7b0a-7cc4-9d4e-000000000001", orderData(2048))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := envelope.ReadControl(m); err != nil {
			b.Fatal(err)
		}
	}
}

// Target: at most 0.15 of encoding/json reading the same body of 2 kB in the same run.
func BenchmarkReadControl_Structured(b *testing.B) {
	m := structuredOrder(2048)
	b.SetBytes(int64(len(m.Payload)))
	versus(b, func() error {
		_, err := envelope.ReadControl(m)
		return err
	}, func() error {
		var w wireEnvelope
		return json.Unmarshal(m.Payload, &w)
	})
}

// Target: at most 0.15 of decoding and encoding the same body of 2 kB in the same run.
func BenchmarkRecordFailure_Structured(b *testing.B) {
	m := structuredOrder(2048)
	failure := envelope.Failure{
		Err:   envelope.Error{Message: "payment gateway timeout", Code: "504", Trace: strings.Repeat("main.go:42\n", 10)},
		Class: "*net.OpError", At: time.Unix(1772319222, 0), Retry: 1,
	}
	versus(b, func() error {
		envelope.RecordFailure(m, failure)
		return nil
	}, func() error {
		var w wireEnvelope
		if err := json.Unmarshal(m.Payload, &w); err != nil {
			return err
		}
		w.Error, w.RetryCount = &failure.Err, failure.Retry
		out := m.Copy()
		var err error
		out.Payload, err = json.Marshal(w)
		return err
	})
}

func BenchmarkRecordFailure_Binary(b *testing.B) {
	m := binaryMessage()
	failure := envelope.Failure{
		Err:   envelope.Error{Message: "payment gateway timeout", Code: "504"},
		Class: "*net.OpError", At: time.Now(), Retry: 3,
	}
	b.ReportAllocs()
	for b.Loop() {
		envelope.RecordFailure(m, failure)
	}
}

// versus times ours and the peer alternately, so that a noisy machine affects both equally, and reports the ratio.
func versus(b *testing.B, ours, peer func() error) {
	b.Helper()
	b.ReportAllocs()
	const turn = 100
	var peerTime, ourTime time.Duration
	var runs int
	for b.Loop() {
		if runs++; runs%turn != 0 {
			if err := ours(); err != nil {
				b.Fatal(err)
			}
			continue
		}
		b.StopTimer()
		ourTime += timed(b, turn, ours)
		peerTime += timed(b, turn, peer)
		b.StartTimer()
	}
	if peerTime > 0 {
		b.ReportMetric(float64(ourTime)/float64(peerTime), "x-of-encoding/json")
		b.ReportMetric(float64(peerTime)/float64(runs/turn*turn), "peer-ns/op")
	}
}

func timed(b *testing.B, n int, f func() error) time.Duration {
	b.Helper()
	start := time.Now()
	for range n {
		if err := f(); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(start)
}
