package dlq

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"hash/fnv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

const (
	maxCauseInput = 4 << 10
	maxCause      = 512
)

// Fingerprint puts errors into groups: two errors with the same class (a Go type), code, handler and normalized text
// have the same fingerprint. It is 16 hex digits and the same in every process and version of this library.
func Fingerprint(handler, class, code, message string) string {
	h := sha256.New()
	for _, part := range []string{"1", handler, class, code, Normalize(message)} {
		writePart(h, []byte(part))
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// Normalize replaces everything in an error's text that differs between messages - numbers, ids, UUIDs, hex, quoted
// values, times, addresses - by a ?. The result is the cause, at most 512 bytes of valid UTF-8.
func Normalize(message string) string {
	if len(message) > maxCauseInput {
		message = message[:maxCauseInput]
	}
	n := normalizer{in: strings.ToValidUTF8(message, "\uFFFD")}
	n.out.Grow(min(len(n.in), maxCause) + utf8.UTFMax)
	for n.pos < len(n.in) && n.out.Len() < maxCause {
		n.step()
	}
	text := strings.TrimSpace(n.out.String())
	if len(text) > maxCause {
		cut := maxCause
		for !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut]
	}
	return text
}

// normalizer reads the text once, word by word.
type normalizer struct {
	in  string
	pos int
	out strings.Builder
	// value means that out ends in a ?.
	value bool
	// glue is punctuation held back after a ?: if another value follows, all of it becomes one ?, as in 10.0.0.1:5432.
	glue string
}

func (n *normalizer) step() {
	rest := n.in[n.pos:]
	c := rest[0]
	switch {
	case c == '"' || c == '`' || c == '\'' && (n.pos == 0 || !isAlnum(n.in[n.pos-1])): // can't has none
		if end := strings.IndexByte(rest[1:], c); end >= 0 {
			n.putText(string(c) + "?" + string(c))
			n.pos += end + 2
			return
		}
		n.putText(rest[:1])
		n.pos++
	case isAlnum(c):
		word := rest[:wordLength(rest)]
		n.pos += len(word)
		if isValue(word) || n.value && isTimeWord(word) {
			n.putValue()
			return
		}
		if n.pos < len(n.in) && isTimeWord(word) && nextIsNumber(n.in[n.pos:]) {
			n.putValue() // "Nov 21", "Sat, 21"
			return
		}
		n.putWord(word)
	case c == ' ' || c == '\t' || c == '\n' || c == '\r':
		n.pos++
		n.putSpace()
	default:
		_, size := utf8.DecodeRuneInString(rest)
		n.pos += size
		if n.value && size == 1 && strings.IndexByte("-:.,/+_@", c) >= 0 {
			n.glue += rest[:1]
			return
		}
		n.putText(rest[:size])
	}
}

func (n *normalizer) putValue() {
	if !n.value {
		n.out.WriteByte('?')
	}
	n.glue, n.value = "", true
}

func (n *normalizer) putText(text string) {
	n.out.WriteString(n.glue)
	n.out.WriteString(text)
	n.glue, n.value = "", false
}

// putWord writes a word without its digits: db7 and db8 are one cause.
func (n *normalizer) putWord(word string) {
	n.out.WriteString(n.glue)
	n.glue, n.value = "", false
	digits := false
	for i := range len(word) {
		if isDigit(word[i]) {
			if !digits {
				n.out.WriteByte('?')
			}
			digits = true
			continue
		}
		digits = false
		n.out.WriteByte(word[i])
	}
}

func (n *normalizer) putSpace() {
	if n.value && n.glue == "" || n.glue == "," {
		// "21 Nov 2026": a space between values is part of them. It is written when something else follows.
		n.glue += " "
		return
	}
	if n.glue == " " || n.glue == ", " {
		return
	}
	if text := n.out.String(); n.glue == "" && (text == "" || text[len(text)-1] == ' ') {
		return
	}
	n.putText(" ")
}

func wordLength(s string) int {
	i := 0
	for i < len(s) && isAlnum(s[i]) {
		i++
	}
	// A UUID is one word, whatever letters its groups have.
	if i == 8 && len(s) >= 36 && uuid.Validate(s[:36]) == nil && (len(s) == 36 || !isAlnum(s[36])) {
		return 36
	}
	return i
}

// isValue reports whether a word is a number, a duration, a hex number or an id, rather than a name.
func isValue(word string) bool {
	if len(word) == 36 && uuid.Validate(word) == nil {
		return true
	}
	digits, hexDigits := 0, 0
	for i := range len(word) {
		if isDigit(word[i]) {
			digits++
		}
		if isHex(word[i]) {
			hexDigits++
		}
	}
	switch {
	case digits == 0:
		return false
	case digits == len(word), isDuration(word):
		return true
	case len(word) > 2 && (word[:2] == "0x" || word[:2] == "0X"):
		return true
	case hexDigits == len(word) && len(word) >= 6:
		return true
	default:
		// An order number, a ULID or a token is long and has digits throughout; base64decode and utf8mb4general are names.
		return len(word) >= 8 && digits*4 >= len(word)
	}
}

// isDuration reports whether a word is 250ms or 1m30s, or a time like 22T10 or 42Z.
func isDuration(word string) bool {
	if !isDigit(word[0]) {
		return false
	}
	for i := 0; i < len(word); {
		for i < len(word) && isDigit(word[i]) {
			i++
		}
		unit := i
		for i < len(word) && !isDigit(word[i]) {
			i++
		}
		switch word[unit:i] {
		case "", "ns", "us", "ms", "s", "m", "h", "d", "T", "Z", "B", "KB", "MB", "GB", "kB", "KiB", "MiB", "GiB", "th", "st",
			"nd", "rd":
		default:
			return false
		}
	}
	return true
}

// isTimeWord reports whether a word is the name of a day, a month or a zone; next to a number it is part of a time.
func isTimeWord(word string) bool {
	switch word {
	case "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun",
		"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "UTC", "GMT", "AM", "PM":
		return true
	default:
		return false
	}
}

// nextIsNumber reports whether a number follows, or a time word and then a number, as in "Mon Jan 2".
func nextIsNumber(s string) bool {
	for range 2 {
		s = strings.TrimLeft(s, " ,")
		if s == "" {
			return false
		}
		if isDigit(s[0]) {
			return true
		}
		length := wordLength(s)
		if !isTimeWord(s[:length]) {
			return false
		}
		s = s[length:]
	}
	return false
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
func isHex(c byte) bool   { return isDigit(c) || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F' }
func isAlnum(c byte) bool { return isDigit(c) || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }

// keyOf hashes the delivery's origin, the message's id and its content.
//
// The position alone would be enough on Kafka, and the message id alone elsewhere, if producers and drivers made no
// mistakes: a producer that gives every message the id "1", or two topics with similar positions, would turn many
// messages into one entry and lose all but one. So everything that is stable across redeliveries is included. The
// redrive number is included for redriven messages whose entry is gone (purged, or in another store): their key must
// differ from that of the first death.
func keyOf(o *envelope.Origin, handler, messageID string, data []byte, redrive int) driver.Key {
	h := sha256.New()
	for _, part := range []string{"1", o.Broker, o.Topic, o.Consumer, o.Position, handler, messageID} {
		writePart(h, []byte(part))
	}
	if o.Incarnation != "" { // positions restart when a topic is recreated
		writePart(h, []byte(o.Incarnation))
	}
	content := sha256.Sum256(data)
	writePart(h, content[:])
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(redrive))) //nolint:gosec // never negative, see redriveOf
	key := driver.Key(h.Sum(nil))
	if o.Partition != nil && o.Offset != nil {
		binary.BigEndian.PutUint64(key[:], streamPlace(o))
	} else if id, err := uuid.Parse(messageID); err == nil && id.Version() == 7 {
		copy(key[:8], id[:8])
	}
	return key
}

// streamPlace is the first bytes of the key of a delivery with a position in a stream, in stream order, like the time
// in a UUIDv7: keys that arrive together are then neighbours in a store's index and share its pages. Plain digests are
// spread over the whole index, so that every letter reads a page and, after each checkpoint, writes a whole one to the
// log. The other 24 bytes keep keys distinct.
func streamPlace(o *envelope.Origin) uint64 {
	h := fnv.New64a()
	for _, part := range []string{o.Broker, o.Topic, o.Consumer} {
		writePart(h, []byte(part))
	}
	_ = binary.Write(h, binary.BigEndian, *o.Partition) // a hash never fails
	const offsetBits = 48
	return h.Sum64()<<offsetBits | uint64(*o.Offset)&(1<<offsetBits-1) //nolint:gosec // any number will do
}

// writePart writes the length first, so that different lists of parts never produce the same bytes.
func writePart(h hash.Hash, part []byte) {
	h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part)))) //nolint:gosec // header values are far below 4 GiB
	h.Write(part)
}
