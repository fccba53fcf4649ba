package dlqtest

import (
	"bytes"
	"fmt"
	"maps"
	"strings"
	"sync"
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
func testExactBytes(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	for name, payload := range Payloads() {
		t.Run(name, func(t *testing.T) {
			e := letter(1, func(d *envelope.DeadLetter) {
				d.Message.Payload = payload
				d.Origin.Position = name
			})
			id := put(t, s, e)[0].ID
			got := get(t, s, id)
			require.True(t, bytes.Equal(payload, got.Body.Payload), "payload of %d bytes was returned as %d", len(payload),
				len(got.Body.Payload))
			require.Equal(t, e.Body.SHA256, got.Body.SHA256)
			require.Equal(t, int64(len(payload)), got.Size)
			require.True(t, bytes.Equal(payload, dlq.RedriveMessage(got).Payload))
		})
	}
}

// Headers are stored unchanged; the values of text columns are cleaned for the database, and the letter is not lost.
func testHostileText(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
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
	id := put(t, s, e)[0].ID
	got := get(t, s, id)
	for key, value := range headers {
		require.Equal(t, value, got.Body.Headers[key], "header %q", key)
	}
	require.Equal(t, "\xff\x00", got.Body.UUID)
	require.Equal(t, "\xff\x00key", got.Origin.RoutingKey)
	require.Equal(t, []byte{0, 255}, got.Origin.Key)
	require.Equal(t, e.ErrorMessage, got.ErrorMessage)
	require.Contains(t, got.ErrorMessage, `bad \0 `)
	require.LessOrEqual(t, len(got.ErrorMessage), 8<<10)
	require.LessOrEqual(t, len(got.Body.Trace), 32<<10)
	require.Equal(t, []int64{id}, ids(all(t, s, dlq.Filter{Handler: e.Handler, ErrorText: `bad \0`})))
	require.Equal(t, driver.Receipt{ID: id, Result: driver.Seen}, put(t, s, e)[0])
}

// An entry from a spool, an export or another program is cleaned when it is stored, too.
func testHostileEntry(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	hostile := func(n int) *dlq.Entry {
		e, long := letter(n), "\x00\xff"+strings.Repeat("é", 40_000)
		for _, text := range append(e.Names(), &e.ErrorMessage, &e.Cause, &e.Body.ContentType, &e.Body.Trace) {
			*text = long
		}
		return e
	}
	e := hostile(1)
	trace := e.Body.Trace
	id := put(t, s, e)[0].ID
	require.Equal(t, trace, e.Body.Trace, "the caller's entry is not changed")
	got := get(t, s, id)
	require.Equal(t, e.Body.Payload, got.Body.Payload)
	require.True(t, strings.HasPrefix(got.Handler, `\0`), got.Handler)
	receipts := must(s.Import(t.Context(), dlq.By{Actor: "ana\x00", Note: "\xff" + trace}, noon,
		driver.Exported{Entry: *hostile(2), Bodies: []dlq.Body{*e.Body}}))(t)
	require.Equal(t, driver.Stored, receipts[0].Result)
}

// Every column of an entry is stored and read back.
func testEveryField(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	partition, offset := int32(3), int64(1042)
	e := letter(1, func(d *envelope.DeadLetter) {
		d.Origin = envelope.Origin{
			Broker: "kafka", Topic: "employee-create", Consumer: "esocial", Exchange: "hr", RoutingKey: "employee.#",
			Key:       []byte("k"),
			Partition: &partition, Offset: &offset, Timestamp: noon.Add(-time.Hour), Position: "3/1042",
			RedriveTo: "employee-create.esocial_again.100",
		}
		d.Message.Metadata["correlation_id"] = "corr-1"
		d.Message.Metadata["x-event"] = "employee.created"
		d.Message.Metadata["source_table"] = "employee"
		d.Message.Metadata["source_id"] = "E-17"
		d.Message.Metadata[envelope.KeyContentType] = "application/json"
	})
	id := put(t, s, e)[0].ID
	got := get(t, s, id)
	want := *e
	want.ID = id
	require.Equal(t, &want, got)
	require.Equal(t, "employee.created", got.EventType)
	require.Equal(t, "E-17", got.SourceID)
	require.Equal(t, "corr-1", got.CorrelationID)
	require.Equal(t, dlq.DefaultRedriveBudget, got.RedriveBudget)

	listed := all(t, s, dlq.Filter{})
	want.Body = nil
	require.Equal(t, []dlq.Entry{want}, listed)
}

// A delivery that is dead-lettered twice is one entry.
func testPutTwice(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	first := put(t, s, letter(1))[0]
	require.Equal(t, driver.Stored, first.Result)
	later := letter(1, func(d *envelope.DeadLetter) { d.At = d.At.Add(time.Minute) })
	require.Equal(t, driver.Receipt{ID: first.ID, Result: driver.Seen}, put(t, s, later)[0])
	got := get(t, s, first.ID)
	require.Equal(t, 2, got.SeenCount)
	require.Equal(t, noon.Add(time.Second), got.CreatedAt)
	require.Equal(t, later.DiedAt, got.LastSeenAt)
	require.Equal(t, int64(1), got.Version)

	// A different position, consumer, handler, message id or payload means a different delivery.
	for i, edit := range []func(*envelope.DeadLetter){
		func(d *envelope.DeadLetter) { d.Origin.Position = "1/1" },
		func(d *envelope.DeadLetter) { d.Origin.Consumer = "shipping" },
		func(d *envelope.DeadLetter) { d.Origin.Topic = "invoices" },
		func(d *envelope.DeadLetter) { d.Handler = "refund" },
		func(d *envelope.DeadLetter) { d.Message.Metadata[envelope.KeyMessageID] = "another" },
		func(d *envelope.DeadLetter) { d.Message.Payload = []byte("another") },
	} {
		require.Equal(t, driver.Stored, put(t, s, letter(1, edit))[0].Result, "edit %d", i)
	}
	require.Len(t, all(t, s, dlq.Filter{}), 7)
}

func testPutTwiceInOneCall(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	receipts := put(t, s, letter(1), letter(2), letter(1))
	require.Equal(t, []driver.Receipt{
		{ID: receipts[0].ID, Result: driver.Stored},
		{ID: receipts[1].ID, Result: driver.Stored},
		{ID: receipts[0].ID, Result: driver.Seen},
	}, receipts)
	require.Equal(t, 2, get(t, s, receipts[0].ID).SeenCount)
	require.Len(t, all(t, s, dlq.Filter{}), 2)
}

// Two processes dead-letter the same deliveries at once: each delivery is one entry.
func testTwoProcesses(t *testing.T, db Database) {
	t.Helper()
	const letters = 40
	stores := []dlq.Store{db.open(t), db.open(t)}
	var wg sync.WaitGroup
	outcomes := make([][]driver.Receipt, len(stores))
	for p, s := range stores {
		outcomes[p] = make([]driver.Receipt, letters)
		for n := range letters {
			wg.Go(func() {
				receipts, err := s.Put(t.Context(), letter(n))
				if assert.NoError(t, err) {
					outcomes[p][n] = receipts[0]
				}
			})
		}
	}
	wg.Wait()
	for n := range letters {
		require.Equal(t, outcomes[0][n].ID, outcomes[1][n].ID)
		require.NotEqual(t, outcomes[0][n].Result, outcomes[1][n].Result, "only one of them stored it")
	}
	for _, e := range all(t, stores[0], dlq.Filter{}) {
		require.Equal(t, 2, e.SeenCount)
	}
	require.Len(t, all(t, stores[1], dlq.Filter{}), letters)
}

// With any number of concurrent writers, every letter is stored once.
func testConcurrentPuts(t *testing.T, db Database) {
	t.Helper()
	const callers, each = 32, 8
	s := db.open(t)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				receipts, err := s.Put(t.Context(), letter(c*each+i))
				if assert.NoError(t, err) {
					assert.Equal(t, driver.Stored, receipts[0].Result)
				}
			}
		})
	}
	wg.Wait()
	entries := all(t, s, dlq.Filter{})
	require.Len(t, entries, callers*each)
	for n, e := range entries {
		require.Equal(t, fmt.Sprintf("message-%d", n), e.EventID)
	}
}

func testPutRefuses(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	bodyless := letter(1)
	bodyless.Body = nil
	for name, e := range map[string]*dlq.Entry{"nil": nil, "zero": {}, "without body": bodyless} {
		_, err := s.Put(t.Context(), letter(2), e)
		require.ErrorIs(t, err, dlq.ErrInvalid, name)
	}
	require.Empty(t, all(t, s, dlq.Filter{}))
	require.Empty(t, must(s.Put(t.Context()))(t))
}
