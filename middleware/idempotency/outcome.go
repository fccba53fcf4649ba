package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/gob"
	"encoding/hex"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// produced is a message as it is stored. gob keeps strings of any bytes, which JSON does not.
type produced struct {
	UUID     string
	Metadata map[string]string
	Payload  []byte
}

// An outcome is a zero byte, a digest and a gob of the produced messages, if any. Outcomes of an earlier release are
// the gob alone, which never begins with zero.
const (
	digested   = 0
	digestSize = 16
)

// digest is the digest of a message's content, the same in each of its attempts and in either mode.
func digest(m *message.Message) []byte {
	content := []byte(m.Payload)
	if e, err := envelope.FromMessage(m); err == nil && e.Mode() == envelope.Structured {
		content = e.Data()
	}
	sum := sha256.Sum256(content)
	return sum[:digestSize]
}

// another is the key of a message that has the id of a different one.
func (k Key) another(digest []byte) Key {
	id := sha256.New()
	id.Write([]byte(k.MessageID))
	id.Write(digest)
	k.MessageID = "sha256:" + hex.EncodeToString(id.Sum(nil))
	return k
}

// Outcome returns what a [Store] keeps of the claimed message when it is done: a digest of its content, which
// identifies a different message with the same id, and the messages produced by its handler.
func (c *Claim) Outcome(messages ...*message.Message) ([]byte, error) {
	var out bytes.Buffer
	out.WriteByte(digested)
	out.Write(c.digest)
	if len(messages) == 0 {
		return out.Bytes(), nil
	}
	list := make([]produced, len(messages))
	for i, m := range messages {
		list[i] = produced{UUID: m.UUID, Metadata: m.Metadata, Payload: m.Payload}
	}
	if err := gob.NewEncoder(&out).Encode(list); err != nil {
		return nil, fmt.Errorf("idempotency: encode the produced messages: %w", err)
	}
	return out.Bytes(), nil
}

// split returns the digest of an outcome, nil if it has none, and the rest of it.
func split(outcome []byte) (digest, produced []byte) {
	if len(outcome) > digestSize && outcome[0] == digested {
		return outcome[1 : 1+digestSize], outcome[1+digestSize:]
	}
	return nil, outcome
}

// decode recreates the produced messages of an outcome, with their ids.
func decode(outcome []byte) ([]*message.Message, error) {
	_, kept := split(outcome)
	if len(kept) == 0 {
		return nil, nil
	}
	var list []produced
	if err := gob.NewDecoder(bytes.NewReader(kept)).Decode(&list); err != nil {
		return nil, fmt.Errorf("idempotency: decode the produced messages: %w", err)
	}
	messages := make([]*message.Message, len(list))
	for i, p := range list {
		messages[i] = message.NewMessage(p.UUID, p.Payload)
		for k, v := range p.Metadata {
			messages[i].Metadata.Set(k, v)
		}
	}
	return messages, nil
}
