package idempotency

import (
	"bytes"
	"encoding/gob"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// produced is a message as it is kept. gob keeps strings of any bytes, which JSON does not.
type produced struct {
	UUID     string
	Metadata map[string]string
	Payload  []byte
}

// EncodeOutcome writes the messages that a handler has produced in the form that a Store keeps; nil for none.
func EncodeOutcome(messages []*message.Message) ([]byte, error) {
	if len(messages) == 0 {
		return nil, nil
	}
	list := make([]produced, len(messages))
	for i, m := range messages {
		list[i] = produced{UUID: m.UUID, Metadata: m.Metadata, Payload: m.Payload}
	}
	var out bytes.Buffer
	if err := gob.NewEncoder(&out).Encode(list); err != nil {
		return nil, fmt.Errorf("idempotency: encode the produced messages: %w", err)
	}
	return out.Bytes(), nil
}

// DecodeOutcome makes the messages anew, with their ids.
func DecodeOutcome(outcome []byte) ([]*message.Message, error) {
	if len(outcome) == 0 {
		return nil, nil
	}
	var list []produced
	if err := gob.NewDecoder(bytes.NewReader(outcome)).Decode(&list); err != nil {
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
