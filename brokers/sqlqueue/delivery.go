package sqlqueue

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/internal/wait"
)

// ErrLeaseLost means that this process could not reach the database for so long that another worker has taken over the
// message. The context of its handler is cancelled with this cause, and the outcome of the handler here has no effect.
var ErrLeaseLost = fmt.Errorf("%w: another worker has its lease", driver.ErrLost)

// unreadableHeaders holds the text of a damaged headers column.
const unreadableHeaders = "x-unreadable-headers"

// delivery is a row leased by this process, from the claim until the database has recorded its outcome.
type delivery struct {
	row     claimed
	stream  *stream
	counted atomic.Bool // it is no longer outstanding

	mu      sync.Mutex
	uuid    string                  // of the message
	expires time.Time               // of the lease, by this process's clock, counted from before the statement was sent
	cancel  context.CancelCauseFunc // of the handler's context; nil until it begins
	state   rowState
	// leaving means that the row is being returned to the queue: it may be claimed again, even by this process, before
	// the caller that returns it has the database's answer.
	leaving bool
	// left means that the row no longer counts for the lease that it shares. Guarded by leases.mu.
	left bool
}

// rowState is what this process may still do with a row.
type rowState uint8

const (
	rowOpen     rowState = iota
	rowDeciding          // the ack or nack, the handler's transaction, or the retry is being recorded
	rowDecided           // the database has recorded it
	rowLost              // the row is another worker's, although the handler here may still be running
)

// deliveryKey is the key of the delivery in its handler's context.
type deliveryKey struct{}

func (d *delivery) describe() driver.Delivery {
	row := &d.row
	m := d.message()
	d.mu.Lock()
	d.uuid = m.UUID
	d.mu.Unlock()
	held := driver.Delivery{Message: m, Token: d, Suspect: row.crashes, Earlier: row.deliveries - 1}
	o := &held.Origin
	// Ids start over when the table is emptied, positions never do.
	o.Offset, o.Position = &row.id, strconv.FormatInt(row.id, 10)+"/"+strconv.FormatInt(row.publishedAt, 36)
	o.Timestamp = time.UnixMicro(row.publishedAt).UTC()
	o.Redelivered, o.DeliveryCount = row.deliveries > 1, row.deliveries
	return held
}

// carries reports whether the delivery belongs to the message.
func (d *delivery) carries(uuid string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.uuid == uuid
}

// message returns the message as it was stored.
func (d *delivery) message() *message.Message {
	m, err := d.row.message()
	if err != nil {
		// The payload may be intact, and the dead letters are the place to inspect it.
		m = message.NewMessage(d.row.uuid, d.row.payload)
		m.Metadata.Set(unreadableHeaders, d.row.headers)
	}
	return m
}

// begin returns the context of d's handler.
func (d *delivery) begin(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	d.mu.Lock()
	d.cancel = cancel
	gone := d.state == rowLost
	d.mu.Unlock()
	if gone {
		cancel(ErrLeaseLost)
	}
	return context.WithValue(ctx, deliveryKey{}, d)
}

// finished ends the handler's context, and makes room for another row.
func (d *delivery) finished() {
	d.end(context.Canceled)
	if d.counted.Swap(true) {
		return
	}
	s := d.stream
	s.handled.Add(1)
	s.outstanding.Add(-1)
	if s.free() > 0 {
		wait.Signal(s.need)
	}
}

// decide gives the decision on the row to the caller if its state is open, and returns the previous state. leaving
// means that the caller returns the row to the queue.
func (d *delivery) decide(leaving bool) (was rowState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if was = d.state; was == rowOpen {
		d.state, d.leaving = rowDeciding, leaving
	}
	return was
}

// decided ends a decision: either the database has recorded it, or it has failed and the state is open again.
func (d *delivery) decided(to rowState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state, d.leaving = to, d.leaving && to != rowOpen
}

// isLeaving reports whether the row is a new delivery when it is claimed again.
func (d *delivery) isLeaving() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.leaving
}

// lose marks the row as another worker's and cancels the handler, unless a decision is in progress, which will find
// out. The delivery is kept until it is settled, so that rescheduling it again does not create a second message.
func (d *delivery) lose() (marked bool) {
	d.mu.Lock()
	if d.state == rowOpen {
		d.state, marked = rowLost, true
	}
	d.mu.Unlock()
	if marked {
		d.end(ErrLeaseLost)
	}
	return marked
}

// revive gives a row back to the handler that still works on it: no other worker has claimed it meanwhile, or one has
// released it.
func (d *delivery) revive(expires time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == rowLost {
		d.state = rowOpen
	}
	d.expires = expires
}

// end ends the handler's context.
func (d *delivery) end(cause error) {
	d.mu.Lock()
	cancel := d.cancel
	d.mu.Unlock()
	if cancel != nil {
		cancel(cause)
	}
}

// lease returns its end, and whether it is this process's.
func (d *delivery) lease() (ends time.Time, ours bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.expires, d.state != rowLost
}

func (d *delivery) extend(until time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expires = until
}

// leased names the row and its lease.
func (d *delivery) leased() leased { return leased{d.row.id, d.row.batch} }

const (
	// rawUUIDKey carries a Watermill UUID that does not fit the uuid column. It is not valid UTF-8, so headers with it are
	// packed, and no foreign header can be mistaken for it.
	rawUUIDKey = "\xffuuid"
	maxUUID    = 255
	maxName    = 255
)

// row is a message on its way into the database.
type row struct {
	uuid    string
	headers string
	payload []byte
	delay   time.Duration // until the first delivery, or until the retry
}

func newRow(o *driver.Outgoing) row {
	r := row{uuid: o.Message.UUID, payload: o.Message.Payload, delay: o.Delay}
	headers := o.Metadata()
	if !storableUUID(r.uuid) {
		clean := message.Metadata{rawUUIDKey: r.uuid}
		maps.Copy(clean, headers)
		headers, r.uuid = clean, ""
	}
	r.headers = encodeHeaders(headers)
	if r.payload == nil {
		r.payload = []byte{} // nil would be NULL
	}
	return r
}

// size estimates the bytes that the row adds to a statement.
func (r row) size() int { return len(r.payload) + len(r.headers) + len(r.uuid) + 64 }

func storableUUID(s string) bool { return len(s) <= maxUUID && plainText(s) }

// plainText reports whether every database stores s unchanged in a text column.
func plainText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// claimed is a row leased by a worker.
type claimed struct {
	id          int64
	at          int64 // where the claim found it in the index; 0 if the database does not return it
	dueAt       int64 // microseconds since 1970
	publishedAt int64
	deliveries  int
	crashes     int   // consecutive leases that ended without an answer
	batch       int64 // the lease that the row shares with others; 0 for a separate one
	uuid        string
	headers     string
	payload     []byte
}

// same reports whether c and d, which have the same id, are the same row.
func (c *claimed) same(d *claimed) bool { return c.publishedAt == d.publishedAt && c.uuid == d.uuid }

// message returns the published message. It fails if the headers have been damaged by hand.
func (c claimed) message() (*message.Message, error) {
	m := message.NewMessage(c.uuid, c.payload)
	if err := decodeHeaders(c.headers, m.Metadata); err != nil {
		return nil, err
	}
	if raw, ok := m.Metadata[rawUUIDKey]; ok {
		m.UUID = raw
		delete(m.Metadata, rawUUIDKey)
	}
	return m, nil
}

// checkName refuses topics and groups that do not fit a column of 255 bytes.
func checkName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("the %s is empty", what)
	case len(name) > maxName:
		return fmt.Errorf("the %s of %d bytes is too long: %d are the limit", what, len(name), maxName)
	case !plainText(name):
		return fmt.Errorf("the %s %q holds control characters or is not UTF-8", what, name)
	}
	return nil
}

// binaryKey marks headers that no JSON string can represent. Its value is an array of all pairs, in base64.
const binaryKey = "$binary"

// encodeHeaders returns the text for the headers column: a JSON object of strings, so that an operator can read and
// filter it with the database's own JSON functions. If one of them is not valid UTF-8, which JSON would alter, all are
// under binaryKey.
func encodeHeaders(headers message.Metadata) string {
	for k, v := range headers {
		if k == binaryKey || !utf8.ValidString(k) || !utf8.ValidString(v) {
			return encodeBinaryHeaders(headers)
		}
	}
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(map[string]string(headers)) // a map of strings always encodes
	return strings.TrimSuffix(text.String(), "\n")
}

func encodeBinaryHeaders(headers message.Metadata) string {
	pairs := make([][2][]byte, 0, len(headers))
	for k, v := range headers {
		pairs = append(pairs, [2][]byte{[]byte(k), []byte(v)})
	}
	b, _ := json.Marshal(map[string]any{binaryKey: pairs}) // bytes cannot fail
	return string(b)
}

// decodeHeaders reads the output of encodeHeaders, and any other JSON object: values that are not strings, which a
// foreign INSERT may contain, become their JSON text. headers is initially empty.
func decodeHeaders(text string, headers message.Metadata) error {
	if json.Unmarshal([]byte(text), &headers) == nil {
		return nil // as in nearly every row
	}
	clear(headers)
	if strings.TrimSpace(text) == "" {
		return nil
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &values); err != nil {
		return fmt.Errorf("headers are not a JSON object: %w", err)
	}
	if packed, ok := values[binaryKey]; ok && len(values) == 1 {
		var pairs [][2][]byte
		if err := json.Unmarshal(packed, &pairs); err != nil {
			return fmt.Errorf("headers under %s: %w", binaryKey, err)
		}
		for _, pair := range pairs {
			headers[string(pair[0])] = string(pair[1])
		}
		return nil
	}
	for k, raw := range values {
		var s string
		if json.Unmarshal(raw, &s) != nil {
			s = string(raw)
		}
		headers[k] = s
	}
	return nil
}
