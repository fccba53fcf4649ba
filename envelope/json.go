package envelope

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"iter"
	"math/bits"
	"unicode/utf8"
)

// A structured body is read for its control data before each attempt, and a failure replaces two of its values and no
// other byte. encoding/json gives no positions and takes ten times as long, so this file finds the members itself. It
// accepts what encoding/json accepts.

// maxDepth is how deep JSON may nest, the limit of encoding/json.
const maxDepth = 10_000

// span is a part of a body: body[start:end]. The zero span means absent.
type span struct{ start, end int }

func (s span) ok() bool           { return s.end > s.start }
func (s span) of(b []byte) []byte { return b[s.start:s.end] }

// object iterates over the members of a JSON object without decoding them. It checks their syntax as strictly as
// encoding/json, in one pass and without recursion; the nesting limit counts from the object.
type object struct {
	b       []byte
	pos     int
	last    int  // end of the last member's value, or just after the opening brace
	started bool // a member was seen
	done    bool // the closing brace was seen
}

// openObject begins at the first byte that is not white space; it reports false if that is not an opening brace.
func openObject(b []byte, pos int) (object, bool) {
	pos = skipSpace(b, pos)
	if pos >= len(b) || b[pos] != '{' {
		return object{}, false
	}
	return object{b: b, pos: pos + 1, last: pos + 1}, true
}

// next returns the next member: its key between the quotes, still escaped, and its value. It reports false at the end
// of the object, with done set, and at a syntax error, without it.
func (o *object) next() (key, value span, ok bool) {
	i := skipSpace(o.b, o.pos)
	if o.done || i >= len(o.b) {
		return span{}, span{}, false
	}
	if o.b[i] == '}' {
		o.pos, o.done = i+1, true
		return span{}, span{}, false
	}
	if o.started {
		if o.b[i] != ',' {
			return span{}, span{}, false
		}
		i = skipSpace(o.b, i+1)
	}
	keyEnd, start := skipKey(o.b, i)
	if start < 0 {
		return span{}, span{}, false
	}
	start = skipSpace(o.b, start) // the value's own first byte
	end := skipValue(o.b, start, 1)
	if end < 0 {
		return span{}, span{}, false
	}
	o.started, o.pos, o.last = true, end, end
	return span{i + 1, keyEnd}, span{start, end}, true
}

// members are the keys, still escaped, and the values of the object at pos, or none if there is no object. They end
// early at a syntax error.
func members(b []byte, pos int) iter.Seq2[[]byte, span] {
	return func(yield func([]byte, span) bool) {
		o, ok := openObject(b, pos)
		for ok {
			var key, value span
			if key, value, ok = o.next(); ok {
				ok = yield(key.of(b), value)
			}
		}
	}
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && b[i] <= ' ' && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// skipValue returns the index after the JSON value at b[i], or -1 if there is no valid one. outer is the depth at which
// it is nested.
func skipValue(b []byte, i, outer int) int {
	i = skipSpace(b, i)
	if i < len(b) && (b[i] == '{' || b[i] == '[') {
		return skipNested(b, i, outer)
	}
	return skipScalar(b, i)
}

// skipNested skips the object or array at b[i].
func skipNested(b []byte, i, outer int) int {
	var room [64]byte
	closers := room[:0] // of the objects and arrays around
	for {
		if i = skipSpace(b, i); i >= len(b) {
			return -1
		}
		switch c := b[i]; c {
		case '{', '[':
			if len(closers)+outer >= maxDepth {
				return -1
			}
			closer := c + 2 // in ASCII
			if i = skipSpace(b, i+1); i < len(b) && b[i] == closer {
				i++
				break
			}
			closers = append(closers, closer)
			if closer == '}' {
				_, i = skipKey(b, i)
			}
			if i < 0 {
				return -1
			}
			continue
		case '"':
			i = skipString(b, i+1)
		default:
			i = skipScalar(b, i)
		}
		// What follows a value: the ends of the objects and arrays whose last value it is, then a comma, and in an object
		// a key.
		for last := len(closers) - 1; ; last-- {
			if last < 0 || i < 0 {
				return i
			}
			if i = skipSpace(b, i); i >= len(b) {
				return -1
			}
			i++
			if b[i-1] == ',' {
				if closers = closers[:last+1]; closers[last] == '}' {
					_, i = skipKey(b, skipSpace(b, i))
				}
				break
			}
			if b[i-1] != closers[last] {
				return -1
			}
		}
		if i < 0 {
			return -1
		}
	}
}

// skipKey skips the key at b[i] and its colon. It returns the positions of the closing quote and behind the colon; the
// latter is -1 if there is no key.
func skipKey(b []byte, i int) (quote, end int) {
	if i >= len(b) || b[i] != '"' {
		return 0, -1
	}
	after := skipString(b, i+1)
	if after < 0 {
		return 0, -1
	}
	i = skipSpace(b, after)
	if i >= len(b) || b[i] != ':' {
		return 0, -1
	}
	return after - 1, i + 1
}

func skipScalar(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"':
		return skipString(b, i+1)
	case 't':
		return skipLiteral(b, i, "true")
	case 'f':
		return skipLiteral(b, i, "false")
	case 'n':
		return skipLiteral(b, i, "null")
	default:
		return skipNumber(b, i)
	}
}

func skipLiteral(b []byte, i int, literal string) int {
	if len(b)-i < len(literal) || string(b[i:i+len(literal)]) != literal {
		return -1
	}
	return i + len(literal)
}

func skipNumber(b []byte, i int) int {
	if i < len(b) && b[i] == '-' {
		i++
	}
	first := i
	i = skipDigits(b, i)
	if i == first || b[first] == '0' && i > first+1 {
		return -1
	}
	if i < len(b) && b[i] == '.' {
		first = i + 1
		if i = skipDigits(b, first); i == first {
			return -1
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		first = i
		if i = skipDigits(b, first); i == first {
			return -1
		}
	}
	return i
}

func skipDigits(b []byte, i int) int {
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	return i
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// longString is the length from which bytes.IndexByte pays off; below it, the calls cost more.
const longString = 64

// skipString skips the rest of a string, from a byte inside it.
func skipString(b []byte, i int) int {
	for long := i + longString; i < long && i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		// A byte's high bit is set where it is a control character, a quote or a backslash. Only the lowest set bit is
		// valid, since borrows propagate upwards.
		stops := ((w - ' '*ones) | (w ^ '"'*ones - ones) | (w ^ '\\'*ones - ones)) &^ w & highs
		if stops != 0 {
			if i += bits.TrailingZeros64(stops) >> 3; b[i] == '"' {
				return i + 1
			}
			break
		}
	}
	return skipText(b, i)
}

// skipText is skipString for texts that are long, contain escapes, or are at the end of b.
func skipText(b []byte, i int) int {
	for quote := -1; ; {
		if quote < i { // or the last one was escaped
			n := bytes.IndexByte(b[i:], '"')
			if n < 0 {
				return -1
			}
			quote = i + n
		}
		end := quote
		if n := bytes.IndexByte(b[i:quote], '\\'); n >= 0 {
			end = i + n
		}
		if hasControl(b[i:end]) {
			return -1
		}
		if end == quote {
			return quote + 1
		}
		if i = skipEscape(b, end); i < 0 {
			return -1
		}
	}
}

// hasControl reports whether text contains a control character, which JSON forbids, 32 bytes at a time.
func hasControl(b []byte) bool {
	for ; len(b) >= 32; b = b[32:] {
		w0, w1 := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
		w2, w3 := binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])
		// In ASCII only a control character sets a high bit of a difference. So does a byte above ASCII: look again.
		d0, d1, d2, d3 := w0-' '*ones, w1-' '*ones, w2-' '*ones, w3-' '*ones
		if (d0|d1|d2|d3)&highs != 0 && (d0&^w0|d1&^w1|d2&^w2|d3&^w3)&highs != 0 {
			return true
		}
	}
	for _, c := range b {
		if c < ' ' {
			return true
		}
	}
	return false
}

// skipEscape skips the escape sequence whose backslash is b[i].
func skipEscape(b []byte, i int) int {
	if i+1 >= len(b) {
		return -1
	}
	switch b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
		if i+6 > len(b) {
			return -1
		}
		for _, c := range b[i+2 : i+6] {
			if c-'0' > 9 && c|0x20-'a' > 5 {
				return -1
			}
		}
		return i + 6
	}
	return -1
}

// unquote decodes the text between the quotes of a valid JSON string, as encoding/json does: lone surrogates and
// invalid UTF-8 become U+FFFD.
func unquote(inner []byte) string {
	if bytes.IndexByte(inner, '\\') < 0 && utf8.Valid(inner) {
		return string(inner)
	}
	quoted := make([]byte, 0, len(inner)+2)
	quoted = append(append(append(quoted, '"'), inner...), '"')
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil {
		return string(inner) // unreachable: the scanner has validated it
	}
	return s
}

// encodeJSON is json.Marshal without its escapes for HTML.
func encodeJSON(v any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

func appendString(b []byte, s string) []byte {
	text, _ := encodeJSON(s) // strings always have a JSON form
	return append(b, text...)
}
