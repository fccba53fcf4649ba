package sqlqueue

import (
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

const (
	// rawUUIDKey carries a Watermill UUID that the uuid column cannot hold. It is no valid UTF-8, so that headers with it
	// are packed, and no header of anybody's can be mistaken for it.
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

// newRow copies m. Its headers lose what a broker made of them, and the request for a delay, which the row carries.
func newRow(m *message.Message, delay time.Duration) row {
	uuid, headers := m.UUID, m.Metadata
	if storable := storableUUID(uuid); !storable || anyBrokerMade(headers) {
		clean := make(message.Metadata, len(headers)+1)
		for k, v := range headers {
			if !envelope.IsBrokerMade(k) {
				clean[k] = v
			}
		}
		if !storable {
			clean[rawUUIDKey] = uuid
			uuid = ""
		}
		headers = clean
	}
	payload := []byte(m.Payload)
	if payload == nil {
		payload = []byte{} // nil would be NULL
	}
	return row{uuid: uuid, headers: encodeHeaders(headers), payload: payload, delay: delay}
}

func anyBrokerMade(headers message.Metadata) bool {
	for k := range headers {
		if envelope.IsBrokerMade(k) {
			return true
		}
	}
	return false
}

// size is what the row adds to a statement, roughly.
func (r row) size() int { return len(r.payload) + len(r.headers) + len(r.uuid) + 64 }

func storableUUID(s string) bool {
	if len(s) > maxUUID {
		return false
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] >= 0x7f {
			return plainText(s)
		}
	}
	return true
}

// plainText tells whether every database stores s in a text column as it is.
func plainText(s string) bool {
	for _, r := range s {
		if unicode.IsControl(r) {
			return false
		}
	}
	return utf8.ValidString(s)
}

// claimed is a row that a worker has the lease of.
type claimed struct {
	id          int64
	at          int64 // where the claim found it in the index; 0 when the database does not say
	dueAt       int64 // microseconds since 1970
	publishedAt int64
	deliveries  int
	crashes     int   // leases in a row that ended without an answer
	batch       int64 // the lease that the row shares with others; 0 for one of its own
	uuid        string
	headers     string
	payload     []byte
}

// message makes the message that was published. It fails when the headers have been damaged by hand.
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

// checkName refuses topics and groups that a column of 255 bytes cannot hold.
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

// checkSize refuses a message that the database would refuse after reading all of it.
func checkSize(m *message.Message, limit int64) error {
	size := int64(len(m.Payload)) + int64(len(m.UUID))
	for k, v := range m.Metadata {
		size += int64(len(k) + len(v))
	}
	if size > limit {
		return fmt.Errorf("%w: %d bytes with headers, the limit is %d", brokers.ErrTooLarge, size, limit)
	}
	return nil
}
