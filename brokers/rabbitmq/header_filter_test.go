package rabbitmq

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// shortString and field return encoded parts of a header table.
func shortString(s string) []byte { return append([]byte{byte(len(s))}, s...) }

func sized(kind byte, content []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(content))), content...)
}

func entry(key string, field []byte) []byte { return append(shortString(key), field...) }

// nested returns a table nested depth times.
func nested(depth int) []byte {
	table := entry("n", []byte{kindVoid})
	for range depth {
		table = entry("n", sized('F', table))
	}
	return table
}

func nestedArrays(depth int) []byte {
	array := sized('A', nil)
	for range depth - 1 {
		array = sized('A', array)
	}
	return entry("a", array)
}

func manyEntries(n int) (table []byte) {
	for i := range n {
		table = append(table, entry(string(binary.BigEndian.AppendUint16(nil, uint16(i))), []byte{kindVoid})...)
	}
	return table
}

// frameOf returns the content header frame of a message with a content type, those headers and a message id.
func frameOf(table []byte) []byte {
	payload := []byte{0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3}
	payload = binary.BigEndian.AppendUint16(payload, 1<<15|1<<13|1<<7)
	payload = append(payload, shortString("text/plain")...)
	payload = append(payload, sized(0, table)[1:]...)
	payload = append(payload, shortString("id-1")...)
	frame := append([]byte{contentHeader, 0, 1}, binary.BigEndian.AppendUint32(nil, uint32(len(payload)))...)
	return append(append(frame, payload...), 0xCE)
}

func plainFrame(kind byte, payload string) []byte {
	frame := append([]byte{kind, 0, 1}, binary.BigEndian.AppendUint32(nil, uint32(len(payload)))...)
	return append(append(frame, payload...), 0xCE)
}

// Headers that the client can decode pass unchanged; others are replaced by one header that contains them, and
// everything around them is preserved.
func TestSieve(t *testing.T) {
	for name, tc := range map[string]struct {
		table   []byte
		changed bool
	}{
		"few headers":             {entry("a", sized(kindString, []byte("b"))), false},
		"every kind":              {everyKind(), false},
		"tables 32 deep":          {nested(32), false},
		"tables 33 deep":          {nested(33), true},
		"arrays 32 deep":          {nestedArrays(32), false},
		"arrays 33 deep":          {nestedArrays(33), true},
		"8,192 entries":           {manyEntries(8192), false},
		"8,193 entries":           {manyEntries(8193), true},
		"an array of 8,193":       {entry("a", sized('A', bytes.Repeat([]byte{kindVoid}, 8193))), true},
		"an unknown kind":         {entry("a", append([]byte{'?'}, make([]byte, 300)...)), true},
		"a length beyond the end": {append(entry("a", []byte{kindString, 0, 0, 9, 9}), make([]byte, 300)...), true},
		"more than is kept": {
			append(manyEntries(8193), entry("x", sized(kindBytes, make([]byte, maxUndecoded)))...),
			true,
		},
		"as much, decodable": {entry("x", sized(kindBytes, make([]byte, maxUndecoded))), false},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := plainFrame(1, "method"), plainFrame(3, "abc")
			frame := frameOf(tc.table)
			stream := append(append(append([]byte{}, before...), frame...), after...)
			for reads, in := range map[string]io.Reader{
				"whole": bytes.NewReader(stream), "byte by byte": iotest.OneByteReader(bytes.NewReader(stream)),
				"halves": iotest.HalfReader(bytes.NewReader(stream)),
			} {
				got, err := io.ReadAll(filterHeaders(readOnly{in: in}))
				require.NoError(t, err, reads)
				if !tc.changed {
					require.Equal(t, stream, got, reads)
					continue
				}
				kept := tc.table[:min(len(tc.table), maxUndecoded-1-len(keyUndecoded)-5)]
				want := append(append([]byte{}, before...), frameOf(entry(keyUndecoded, sized(kindBytes, kept)))...)
				require.Equal(t, append(want, after...), got, reads)
			}
		})
	}
}

func everyKind() (table []byte) {
	for kind, size := range map[byte]int{
		kindBool: 1, kindInt8: 1, kindUint8: 1, kindInt16: 2, kindUint16: 2, kindInt32: 4, kindUint32: 4, kindInt64: 8,
		kindFloat32: 4, kindFloat64: 8, kindDecimal: 5, kindTimestamp: 8, kindVoid: 0,
	} {
		table = append(table, entry(string(kind), append([]byte{kind}, make([]byte, size)...))...)
	}
	table = append(table, entry("long", sized(kindString, make([]byte, 200)))...)
	table = append(table, entry("bytes", sized(kindBytes, make([]byte, 200)))...)
	table = append(table, entry("array", sized('A', append(sized(kindString, []byte("x")), kindVoid)))...)
	return append(table, entry("table", sized('F', entry("x", []byte{kindBool, 1})))...)
}

// If the server is not RabbitMQ, or a connection breaks at any byte, the client gets the bytes as received.
func TestSieve_PassesOtherBytesUnchanged(t *testing.T) {
	stream := append(plainFrame(1, "method"), frameOf(nested(33))...)
	for end := range stream {
		got, err := io.ReadAll(filterHeaders(readOnly{in: bytes.NewReader(stream[:end])}))
		require.NoError(t, err)
		require.Equal(t, stream[:end], got)
	}
	for _, text := range []string{
		"AMQP\x00\x00\x09\x01", "HTTP/1.1 400 Bad Request\r\n\r\n",
		"\x15\x03\x03\x00\x02\x02\x46",
	} {
		s := filterHeaders(readOnly{in: bytes.NewReader([]byte(text))})
		got, err := io.ReadAll(s)
		require.NoError(t, err)
		require.Equal(t, text, string(got))
		require.Equal(t, text[0] == tlsAlert, s.alert.Load())
	}
}

// readOnly is a connection for reading only.
type readOnly struct {
	net.Conn
	in io.Reader
}

func (r readOnly) Read(p []byte) (int, error) { return r.in.Read(p) }

func FuzzSieve(f *testing.F) {
	f.Add(frameOf(nested(33)))
	f.Add(frameOf(everyKind()))
	f.Add(plainFrame(3, "abc"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		_, err := io.ReadAll(filterHeaders(readOnly{in: bytes.NewReader(stream)}))
		require.NoError(t, err)
	})
}
