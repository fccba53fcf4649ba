package sqlqueue

import (
	"fmt"
	"maps"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers/driver"
)

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

// newRow returns the row of a publication.
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
