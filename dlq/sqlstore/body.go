package sqlstore

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/sqldb"
)

var bodyColumns = []string{
	"entry_id", "revision", "message_uuid", "payload", "payload_json", "payload_sha256", "content_type", "headers",
	"stack_trace",
}

// Places in bodyColumns.
const (
	bodyPayload    = 3
	bodyProjection = 4
	bodyHeaders    = 7
)

func bodyValues(d dialect, entryID int64, b *dlq.Body) ([]any, error) {
	headers, err := encodeHeaders(b)
	if err != nil {
		return nil, err
	}
	payload := b.Payload
	if payload == nil {
		payload = []byte{} // nil would be NULL
	}
	return []any{
		entryID, b.Revision, append([]byte{}, b.UUID...), payload, d.projection(b.Payload), b.SHA256[:], null(b.ContentType),
		headers, null(b.Trace),
	}, nil
}

// partColumns are those of dlq_parts.
var partColumns = []string{"entry_id", "revision", "part", "payload"}

// insertBodies inserts rows of bodyColumns, as many per statement as it may hold.
func (s *Store) insertBodies(ctx context.Context, tx *sql.Tx, bodies [][]any) error {
	for len(bodies) > 0 {
		n, size := 0, 0
		var parts [][]any
		for n < len(bodies) && (n == 0 || size < s.maxStatement()) {
			parts = append(parts, splitBody(bodies[n], s.dialect.partSize())...)
			for _, value := range bodies[n] {
				size += length(value)
			}
			n++
		}
		if err := s.dialect.insertRows(ctx, s, tx, tableRows{"dlq_bodies", bodyColumns, bodies[:n]}); err != nil {
			return fmt.Errorf("body: %w", err)
		}
		for i := range parts {
			if err := s.dialect.insertRows(ctx, s, tx, tableRows{"dlq_parts", partColumns, parts[i : i+1]}); err != nil {
				return fmt.Errorf("part of a body: %w", err)
			}
		}
		bodies = bodies[n:]
	}
	return nil
}

// maxStatement is the target size of a statement for many bodies, in bytes.
func (s *Store) maxStatement() int { return cmp.Or(s.dialect.partSize(), 4<<20) }

// splitBody cuts what is too long for one row off a row of bodyColumns, and returns it as rows of partColumns.
func splitBody(body []any, size int) (parts [][]any) {
	payload, _ := body[bodyPayload].([]byte)
	if size == 0 || len(payload) <= size {
		return nil
	}
	body[bodyPayload] = payload[:size]
	for rest := range slices.Chunk(payload[size:], size) {
		parts = append(parts, []any{body[0], body[1], len(parts) + 1, rest})
	}
	return parts
}

// hasParts reports whether a payload, as it was read, may continue in dlq_parts.
func (s *Store) hasParts(payload []byte) bool {
	return len(payload) > 0 && len(payload) == s.dialect.partSize()
}

func length(value any) int {
	switch value := value.(type) {
	case string:
		return len(value)
	case []byte:
		return len(value)
	default:
		return 0
	}
}

// Body returns one revision of an entry's body.
func (s *Store) Body(ctx context.Context, id int64, revision int) (*dlq.Body, error) {
	return reading(s, fmt.Sprintf("body %d of entry %d", revision, id), func() (*dlq.Body, error) {
		return s.readBody(ctx, id, revision)
	})
}

const selectBody = "SELECT entry_id, revision, message_uuid, payload, payload_sha256, content_type, headers," +
	" stack_trace FROM dlq_bodies"

func (s *Store) readBody(ctx context.Context, id int64, revision int) (*dlq.Body, error) {
	b, err := scanBody(s.row(ctx, selectBody+" WHERE entry_id = ? AND revision = ?", id, revision), &id)
	if err == nil && s.hasParts(b.Payload) {
		err = s.readParts(ctx, id, b)
	}
	return b, err
}

// scanBody reads a row of selectBody.
func scanBody(row sqldb.Row, id *int64) (*dlq.Body, error) {
	b := &dlq.Body{}
	var uuid, digest []byte
	var headers string
	err := row.Scan(id, &b.Revision, &uuid, &b.Payload, &digest, textValue{&b.ContentType}, &headers, textValue{&b.Trace})
	if err != nil {
		return nil, err
	}
	if b.Payload == nil {
		b.Payload = []byte{}
	}
	b.UUID = string(uuid)
	copy(b.SHA256[:], digest)
	return b, decodeHeaders(b, headers)
}

// readParts appends the rest of a long payload.
func (s *Store) readParts(ctx context.Context, id int64, b *dlq.Body) error {
	const query = "SELECT payload FROM dlq_parts WHERE entry_id = ? AND revision = ? ORDER BY part"
	return sqldb.Each(s.rows(ctx, query, id, b.Revision))(
		func(row sqldb.Row) error {
			var part sql.RawBytes
			err := row.Scan(&part)
			b.Payload = append(b.Payload, part...)
			return err
		})
}

// storedHeaders is the lossless form of headers: JSON only holds valid UTF-8, so other pairs are stored next to it in
// base64.
type storedHeaders struct {
	Text   map[string]string `json:"text"`
	Binary [][2][]byte       `json:"binary,omitempty"`
	// Collected is not a header: it is here because the column goes wherever a body goes.
	Collected *wire.Collected `json:"collected,omitempty"`
}

func encodeHeaders(b *dlq.Body) (string, error) {
	stored := storedHeaders{Text: b.Headers, Collected: b.Wire().Collected}
	if stored.Text == nil {
		stored.Text = map[string]string{}
	}
	for key, value := range b.Headers {
		if utf8.ValidString(key) && utf8.ValidString(value) {
			continue
		}
		if stored.Binary == nil {
			stored.Text = maps.Clone(b.Headers)
		}
		delete(stored.Text, key)
		stored.Binary = append(stored.Binary, [2][]byte{[]byte(key), []byte(value)})
	}
	data, err := json.Marshal(stored)
	return string(data), err
}

func decodeHeaders(b *dlq.Body, data string) error {
	var stored storedHeaders
	if err := json.Unmarshal([]byte(data), &stored); err != nil {
		return fmt.Errorf("headers: %w", err)
	}
	b.Headers = stored.Text
	if b.Headers == nil {
		b.Headers = make(map[string]string, len(stored.Binary))
	}
	for _, pair := range stored.Binary {
		b.Headers[string(pair[0])] = string(pair[1])
	}
	if c := stored.Collected; c != nil {
		b.Collected = envelope.Collected{Broker: string(c.Broker), From: string(c.From), Format: string(c.Format)}
	}
	return nil
}

// jsonLimits is what the JSON functions of a database can read. A payload beyond it has no projection: one such row
// would fail the whole statement that stores or reads it. The limits are far from where the functions fail.
type jsonLimits struct {
	bytes, depth int
	// number reports whether a number can be read; nil for any.
	number func(string) bool
	// text means that \u0000 and lone surrogates cannot be read.
	text bool
}

// accept reports whether a payload is JSON within the limits.
func (l jsonLimits) accept(payload []byte) bool {
	if len(payload) > l.bytes || !utf8.Valid(payload) || !json.Valid(payload) {
		return false
	}
	var depth, end int
	for i := 0; i < len(payload); i = end {
		end = i + 1
		switch c := payload[i]; {
		case c == '"':
			for ; payload[end] != '"'; end++ {
				if payload[end] == '\\' {
					end++
				}
			}
			end++
			if l.text && !plainText(payload[i:end]) {
				return false
			}
		case c == '-' || c >= '0' && c <= '9':
			for end < len(payload) && bytes.IndexByte([]byte("+-.0123456789eE"), payload[end]) >= 0 {
				end++
			}
			if l.number != nil && !l.number(string(payload[i:end])) {
				return false
			}
		case c == '{' || c == '[':
			if depth++; depth > l.depth {
				return false
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return true
}

// plainText reports whether a JSON string has neither \u0000 nor a lone surrogate, which decodes as U+FFFD.
func plainText(quoted []byte) bool {
	if !bytes.Contains(quoted, []byte(`\u`)) {
		return true
	}
	var text string
	return json.Unmarshal(quoted, &text) == nil && !strings.ContainsAny(text, "\x00\uFFFD")
}

// plainNumber accepts numbers with few digits and small exponents, which PostgreSQL's NUMERIC can hold.
func plainNumber(number string) bool {
	_, exponent, _ := strings.Cut(strings.ToLower(number), "e")
	return len(number) <= 1000 && len(strings.TrimLeft(exponent, "+-0")) <= 3
}

// doubleNumber accepts numbers that MySQL reads as doubles, which have up to 308 digits before the point. Like MySQL,
// which rejects 0e999, it looks at how the number is written.
func doubleNumber(number string) bool {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(number), "e")
	integer, _, _ := strings.Cut(strings.TrimPrefix(mantissa, "-"), ".")
	power, _ := strconv.Atoi(exponent)
	return plainNumber(number) && len(integer)+max(power, 0) <= 300
}
