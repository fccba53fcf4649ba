package dlqtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

// Payloads is a corpus of payloads that a store must return byte for byte. Many cannot be stored in a JSON or text
// column.
func Payloads() map[string][]byte {
	random := make([]byte, 4096)
	for i := range random {
		random[i] = byte(i*7 + i/256)
	}
	return map[string][]byte{
		"json":                  []byte(`{"b": 1, "a":  [1,2]}`),
		"duplicate keys":        []byte(`{"a":1,"a":2}`),
		"big number":            []byte(`{"n":9007199254740993,"e":1e400}`),
		"huge exponent":         []byte(`1e200000`),
		"zero with an exponent": []byte(`{"n":0e999}`),
		"400 digits":            []byte(`{"n":1` + strings.Repeat("0", 400) + `}`),
		"escaped NUL":           []byte(`{"s":"a\u0000b"}`),
		"lone surrogate":        []byte(`{"s":"\ud800"}`),
		"malformed JSON":        []byte(`{"order": 17, `),
		"empty":                 {},
		"raw NUL":               []byte("a\x00b\x00"),
		"invalid UTF-8":         []byte("\xff\xfe\x80abc"),
		"invalid UTF-8 in JSON": []byte("{\"s\":\"\xff\"}"),
		"deep nesting":          []byte(strings.Repeat("[", 20000) + strings.Repeat("]", 20000)),
		"800 deep":              []byte(strings.Repeat("[", 800) + strings.Repeat("]", 800)),
		"line feeds":            []byte("a\nb\r\nc\n"),
		"not JSON":              []byte("hello, Ωμέγα"),
		"binary":                random,
		"16 MiB":                bytes.Repeat([]byte("0123456789abcde\x00"), 1<<20),
	}
}

// Every payload is returned unchanged.
func (w *world) TestExactBytes() {
	for name, sent := range Payloads() {
		w.T.Run(name, func(t *testing.T) {
			w := &world{t, w.Store, w.db, w.fresh}
			e := letter(1, payload(sent), func(d *envelope.DeadLetter) { d.Origin.Position = name })
			got := w.get(w.put(e)[0].ID)
			require.True(w, bytes.Equal(sent, got.Body.Payload), "%d bytes were returned as %d", len(sent), got.Size)
			require.Equal(w, e.Body.SHA256, got.Body.SHA256)
			require.Equal(w, int64(len(sent)), got.Size)
			require.True(w, bytes.Equal(sent, dlq.RedriveMessage(got).Payload))
		})
	}
}

// Headers are stored unchanged; the values of text columns are cleaned for the database, and the letter is not lost.
func (w *world) TestHostileText() {
	long := strings.Repeat("x", 200_000)
	headers := map[string]string{
		"nul": "a\x00b", "invalid": "\xff\xfe", "\xffkey": "v", "crlf": "a\r\nb", "": "empty key", "empty": "", "long": long,
		"quote": `'; DROP TABLE dlq_entries; --`, "wide": "\U0001F600 漢字", "line separator": "\u2028", "html": "<script>&",
	}
	e := letter(1, func(d *envelope.DeadLetter) {
		d.Err = envelope.Error{Message: "bad \x00 \xff " + long, Code: "\x00", Trace: "\xff" + long}
		d.Class, d.Rule, d.Handler = "\xff", "\x00", "'; --\x00"
		d.Reason = "\u202e"
		d.Message.UUID = "\xff\x00"
		d.Origin.RoutingKey, d.Origin.Key = "\xff\x00key", []byte{0, 255}
		d.Origin.Topic += "\x00\xff"
		maps.Copy(d.Message.Metadata, headers)
		d.Message.Metadata[envelope.KeyMessageID] = "id'; --"
		d.Message.Metadata["source_id"] = "\x00\xff"
	})
	id := w.put(e)[0].ID
	got := w.get(id)
	for key, value := range headers {
		require.Equal(w, value, got.Body.Headers[key], "header %q", key)
	}
	require.Equal(w, "\xff\x00", got.Body.UUID)
	require.Equal(w, "\xff\x00key", got.Origin.RoutingKey)
	require.Equal(w, []byte{0, 255}, got.Origin.Key)
	require.Equal(w, e.ErrorMessage, got.ErrorMessage)
	require.Contains(w, got.ErrorMessage, `bad \0 `)
	require.LessOrEqual(w, len(got.ErrorMessage), 8<<10)
	require.LessOrEqual(w, len(got.Body.Trace), 32<<10)
	require.Equal(w, []int64{id}, ids(w.all(dlq.Filter{Handler: e.Handler, ErrorText: `bad \0`})))
	require.Equal(w, driver.Receipt{ID: id, Result: driver.Seen}, w.put(e)[0])
}

// An entry from a spool, an export or another program is cleaned when it is stored, too.
func (w *world) TestHostileEntry() {
	hostile := func(n int) *dlq.Entry {
		e, long := letter(n), "\x00\xff"+strings.Repeat("é", 40_000)
		for _, text := range append(e.Names(), &e.ErrorMessage, &e.Cause, &e.Body.ContentType, &e.Body.Trace) {
			*text = long
		}
		return e
	}
	e := hostile(1)
	trace := e.Body.Trace
	id := w.put(e)[0].ID
	require.Equal(w, trace, e.Body.Trace, "the caller's entry is not changed")
	got := w.get(id)
	require.Equal(w, e.Body.Payload, got.Body.Payload)
	require.True(w, strings.HasPrefix(got.Handler, `\0`), got.Handler)
	receipts := must(w.Import(w.Context(), dlq.By{Actor: "ana\x00", Note: "\xff" + trace}, noon,
		driver.Exported{Entry: *hostile(2), Bodies: []dlq.Body{*e.Body}}))(w)
	require.Equal(w, driver.Stored, receipts[0].Result)
}

// A record of Kafka and a header have any time that a producer writes. A letter with one that no calendar has is
// stored, spooled, listed and exported.
func (w *world) TestHostileTime() {
	var exports []driver.Exported
	for n, year := range []int{-1, 10_000, 292_000} {
		at := time.Date(year, time.May, 1, 0, 0, 0, 0, time.UTC)
		e := letter(n, func(d *envelope.DeadLetter) { d.Origin.Timestamp, d.FirstFailure = at, at })
		must(json.Marshal(e.Detail()))(w)
		require.Equal(w, e.CreatedAt, w.get(w.put(e)[0].ID).FirstFailureAt)
		foreign := letter(10 + n)
		for _, field := range foreign.Times() {
			*field = at
		}
		w.put(foreign)
		imported := *foreign
		imported.Key[0]++
		exports = append(exports, driver.Exported{Entry: imported, Bodies: []dlq.Body{*foreign.Body}})
	}
	must(w.Import(w.Context(), dlq.By{Actor: "ana"}, noon, exports...))(w)
	list := w.all(dlq.Filter{})
	require.Len(w, list, 9)
	for i := range list {
		must(json.Marshal(list[i].Wire()))(w)
		require.Equal(w, []bool{true, true}, []bool{list[i].Origin.Timestamp.IsZero(), list[i].SucceededAt.IsZero()})
	}
}

// Every column of an entry is stored and read back.
func (w *world) TestEveryField() {
	partition, offset := int32(3), int64(1042)
	e := letter(1, header("correlation_id", "corr-1"), header("x-event", "employee.created"),
		header("source_table", "employee"), header("source_id", "E-17"), header(envelope.KeyContentType, "application/json"),
		func(d *envelope.DeadLetter) {
			d.Origin = envelope.Origin{
				Broker: "kafka", Topic: "employee-create", Consumer: "esocial", Exchange: "hr", RoutingKey: "employee.#",
				Key: []byte("k"), Partition: &partition, Offset: &offset, Timestamp: noon.Add(-time.Hour),
				Position: "3/1042", RedriveTo: "employee-create.esocial_again.100",
			}
		})
	want := *e
	want.ID = w.put(e)[0].ID
	got := w.get(want.ID)
	require.Equal(w, &want, got)
	require.Equal(w, "employee.created", got.EventType)
	require.Equal(w, "E-17", got.SourceID)
	require.Equal(w, "corr-1", got.CorrelationID)
	require.Equal(w, dlq.DefaultRedriveBudget, got.RedriveBudget)

	want.Body = nil
	require.Equal(w, []dlq.Entry{want}, w.all(dlq.Filter{}))
}

// A delivery that is dead-lettered twice is one entry.
func (w *world) TestPutTwiceIsOneEntry() {
	first := w.put(letter(1))[0]
	require.Equal(w, driver.Stored, first.Result)
	later := letter(1, func(d *envelope.DeadLetter) { d.At = d.At.Add(time.Minute) })
	require.Equal(w, driver.Receipt{ID: first.ID, Result: driver.Seen}, w.put(later)[0])
	got := w.get(first.ID)
	require.Equal(w, 2, got.SeenCount)
	require.Equal(w, noon.Add(time.Second), got.CreatedAt)
	require.Equal(w, later.DiedAt, got.LastSeenAt)
	require.Equal(w, int64(1), got.Version)

	// A different position, consumer, handler, message id or payload means a different delivery.
	for i, edit := range []func(*envelope.DeadLetter){
		func(d *envelope.DeadLetter) { d.Origin.Position = "1/1" },
		func(d *envelope.DeadLetter) { d.Origin.Consumer = "shipping" },
		topic("invoices"),
		func(d *envelope.DeadLetter) { d.Handler = "refund" },
		header(envelope.KeyMessageID, "another"),
		payload("another"),
	} {
		require.Equal(w, driver.Stored, w.put(letter(1, edit))[0].Result, "edit %d", i)
	}
	require.Len(w, w.all(dlq.Filter{}), 7)
}

func (w *world) TestPutTwiceInOneCall() {
	receipts := w.put(letter(1), letter(2), letter(1))
	require.Equal(w, []driver.Receipt{
		{ID: receipts[0].ID, Result: driver.Stored},
		{ID: receipts[1].ID, Result: driver.Stored},
		{ID: receipts[0].ID, Result: driver.Seen},
	}, receipts)
	require.Equal(w, 2, w.get(receipts[0].ID).SeenCount)
	require.Len(w, w.all(dlq.Filter{}), 2)
}

// Two processes dead-letter the same deliveries at once: each delivery is one entry.
func (w *world) TestSameDeliveryFromTwoProcesses() {
	const letters = 40
	stores := []Store{w.Store, w.open()}
	var outcomes [letters][2]driver.Receipt
	atOnce(2*letters, func(i int) {
		n, p := i/2, i%2
		receipts, err := stores[p].Put(w.Context(), letter(n))
		if assert.NoError(w, err) {
			outcomes[n][p] = receipts[0]
		}
	})
	for _, of := range outcomes {
		require.Equal(w, of[0].ID, of[1].ID)
		require.NotEqual(w, of[0].Result, of[1].Result, "only one of them stored it")
	}
	for _, e := range w.all(dlq.Filter{}) {
		require.Equal(w, 2, e.SeenCount)
	}
	require.Len(w, w.on(stores[1]).all(dlq.Filter{}), letters)
}

// With any number of concurrent writers, every letter is stored once.
func (w *world) TestConcurrentPuts() {
	const callers, each = 32, 8
	atOnce(callers, func(c int) {
		for i := range each {
			receipts, err := w.Put(w.Context(), letter(c*each+i))
			if assert.NoError(w, err) {
				assert.Equal(w, driver.Stored, receipts[0].Result)
			}
		}
	})
	entries := w.all(dlq.Filter{})
	require.Len(w, entries, callers*each)
	for n, e := range entries {
		require.Equal(w, fmt.Sprintf("message-%d", n), e.EventID)
	}
}

func (w *world) TestPutRefusesInvalidLetters() {
	bodyless := letter(1)
	bodyless.Body = nil
	for name, e := range map[string]*dlq.Entry{"nil": nil, "zero": {}, "without body": bodyless} {
		fails(w.Put(w.Context(), letter(2), e))(w, dlq.ErrInvalid, name)
	}
	require.Empty(w, w.all(dlq.Filter{}))
	require.Empty(w, must(w.Put(w.Context()))(w))
}
