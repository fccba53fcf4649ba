package sqlstore

import "bytes"

// Limits of what is projected into a jsonb column, far from where jsonb fails.
const (
	maxJSONBBytes  = 16 << 20
	maxJSONBDepth  = 500
	maxJSONBNumber = 1000 // characters of a number
)

// jsonbReadable reports whether PostgreSQL's jsonb accepts a payload. It is stricter than JSON: no \u0000, no lone
// surrogates, and no numbers beyond NUMERIC. When in doubt it returns false: the projection is a convenience, and the
// payload is kept anyway.
func jsonbReadable(payload []byte) bool {
	return len(payload) <= maxJSONBBytes && validJSON(payload, maxJSONBDepth) && plainEscapes(payload) &&
		plainNumbers(payload)
}

// plainEscapes reports whether all \u escapes of valid JSON are characters that PostgreSQL's text can hold.
func plainEscapes(data []byte) bool {
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' {
			continue
		}
		i++ // in valid JSON a backslash is followed by something
		if data[i] != 'u' {
			continue
		}
		code := hexValue(data[i+1 : i+5])
		i += 4
		switch {
		case code == 0, code >= 0xDC00 && code <= 0xDFFF:
			return false
		case code >= 0xD800 && code <= 0xDBFF:
			if len(data) < i+7 || data[i+1] != '\\' || data[i+2] != 'u' {
				return false
			}
			if low := hexValue(data[i+3 : i+7]); low < 0xDC00 || low > 0xDFFF {
				return false
			}
			i += 6
		}
	}
	return true
}

func hexValue(digits []byte) (code rune) {
	for _, c := range digits {
		code <<= 4
		switch {
		case c <= '9':
			code |= rune(c - '0')
		case c <= 'F':
			code |= rune(c - 'A' + 10)
		default:
			code |= rune(c - 'a' + 10)
		}
	}
	return code
}

// plainNumbers reports whether the numbers of valid JSON have few digits and small exponents.
func plainNumbers(data []byte) bool { return eachNumber(data, plainNumber) }

// eachNumber reports whether ok accepts every number of valid JSON.
func eachNumber(data []byte, ok func(number []byte) bool) bool {
	inString := false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '-' || c >= '0' && c <= '9':
			start := i
			for i < len(data) && bytes.IndexByte([]byte("+-.0123456789eE"), data[i]) >= 0 {
				i++
			}
			if !ok(data[start:i]) {
				return false
			}
			i--
		}
	}
	return true
}

func plainNumber(number []byte) bool {
	if len(number) > maxJSONBNumber {
		return false
	}
	e := bytes.IndexAny(number, "eE")
	return e < 0 || len(bytes.TrimLeft(number[e+1:], "+-0")) <= 3
}
