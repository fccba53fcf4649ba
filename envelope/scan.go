package envelope

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// maxDepth is how deep JSON may nest, the limit of encoding/json.
const maxDepth = 10_000

func skipSpace(b []byte, i int) int {
	for i < len(b) && b[i] <= ' ' && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// nesting is a stack of bits: 1 for an object, 0 for an array. The first 64 levels need no memory.
type nesting struct {
	top   uint64
	below []uint64
	depth int
}

func (n *nesting) push(isObject uint64) {
	if n.depth > 0 && n.depth%64 == 0 {
		n.below = append(n.below, n.top)
	}
	n.top = n.top<<1 | isObject
	n.depth++
}

func (n *nesting) pop() {
	n.top >>= 1
	n.depth--
	if n.depth > 0 && n.depth%64 == 0 {
		last := len(n.below) - 1
		n.top, n.below = n.below[last], n.below[:last]
	}
}

// skipValue returns the index after the JSON value at b[i], or -1 if there is no valid one. outer is the depth at which
// it is nested.
func skipValue(b []byte, i, outer int) int {
	var nest nesting
	for {
		if i < len(b) && b[i] <= ' ' {
			i = skipSpace(b, i)
		}
		if i >= len(b) {
			return -1
		}
		switch c := b[i]; c {
		case '"':
			i = skipString(b, i+1)
		case '{', '[':
			if nest.depth+outer >= maxDepth {
				return -1
			}
			i = skipSpace(b, i+1)
			if i < len(b) && b[i] == c+2 { // the closing bracket is two further in ASCII
				i++
				break
			}
			nest.push(uint64(c>>5) & 1)
			if i = nest.skipKey(b, i); i < 0 {
				return -1
			}
			continue
		case 't':
			i = skipLiteral(b, i, "true")
		case 'f':
			i = skipLiteral(b, i, "false")
		case 'n':
			i = skipLiteral(b, i, "null")
		default:
			i = skipNumber(b, i)
		}
		if i < 0 {
			return -1
		}
		for {
			if nest.depth == 0 {
				return i
			}
			if i = skipSpace(b, i); i >= len(b) {
				return -1
			}
			c := b[i]
			i++
			if c == ',' {
				if i = nest.skipKey(b, i); i < 0 {
					return -1
				}
				break
			}
			if c != ']'+byte(nest.top&1)<<5 { // ']' or, 32 further in ASCII, '}'
				return -1
			}
			nest.pop()
		}
	}
}

// skipKey calls the function skipKey within an object and does nothing within an array.
func (n *nesting) skipKey(b []byte, i int) int {
	if n.top&1 == 0 {
		return i
	}
	return skipKey(b, i)
}

// skipKey skips a member's key and colon, and white space before them.
func skipKey(b []byte, i int) int {
	if i < len(b) && b[i] <= ' ' {
		i = skipSpace(b, i)
	}
	if i >= len(b) || b[i] != '"' {
		return -1
	}
	if i = skipString(b, i+1); i < 0 {
		return -1
	}
	if i < len(b) && b[i] <= ' ' {
		i = skipSpace(b, i)
	}
	if i >= len(b) || b[i] != ':' {
		return -1
	}
	return i + 1
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

// longString is the length from which a vectorized search for the end of a string pays off; below it, the setup costs
// more.
const longString = 64

// skipString skips the rest of a string, from a byte inside it, eight bytes at a time.
func skipString(b []byte, i int) int {
	long := i + longString
	for {
		for i+8 <= len(b) {
			if i >= long {
				return skipLongString(b, i)
			}
			w := binary.LittleEndian.Uint64(b[i:])
			// A byte's high bit is set where it is a control character, a quote or a backslash. Only the lowest set bit is
			// valid, since borrows propagate upwards.
			stops := ((w - ' '*ones) | (w ^ '"'*ones - ones) | (w ^ '\\'*ones - ones)) &^ w & highs
			if stops != 0 {
				i += bits.TrailingZeros64(stops) >> 3
				if b[i] == '"' {
					return i + 1
				}
				break
			}
			i += 8
		}
		// At a stop this ends at once; otherwise it scans the last bytes of b.
		for i < len(b) && b[i] >= ' ' && b[i] != '"' && b[i] != '\\' {
			i++
		}
		if i >= len(b) {
			return -1
		}
		switch b[i] {
		case '"':
			return i + 1
		case '\\':
			if i = skipEscape(b, i); i < 0 {
				return -1
			}
		default:
			return -1
		}
	}
}

// skipLongString is skipString for longer text: it finds the stops with the processor's vector instructions.
func skipLongString(b []byte, i int) int {
	quote := -1
	for {
		if quote < i { // or an escaped quote was found
			n := bytes.IndexByte(b[i:], '"')
			if n < 0 {
				return -1
			}
			quote = i + n
		}
		n := bytes.IndexByte(b[i:quote], '\\')
		if n < 0 {
			if hasControl(b[i:quote]) {
				return -1
			}
			return quote + 1
		}
		if hasControl(b[i : i+n]) {
			return -1
		}
		if i = skipEscape(b, i+n); i < 0 {
			return -1
		}
	}
}

// hasControl reports whether text contains a control character, 32 bytes at a time.
func hasControl(b []byte) bool {
	for len(b) >= 32 {
		w0, w1 := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
		w2, w3 := binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])
		// In ASCII only a control character sets a high bit of a difference. So does a byte above ASCII: look again.
		d0, d1, d2, d3 := w0-' '*ones, w1-' '*ones, w2-' '*ones, w3-' '*ones
		if (d0|d1|d2|d3)&highs != 0 && (d0&^w0|d1&^w1|d2&^w2|d3&^w3)&highs != 0 {
			return true
		}
		b = b[32:]
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
