package sql

import (
	"encoding/json"
	"maps"
	"unicode/utf8"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
)

// keyBytes holds metadata that JSON cannot represent: a JSON array of [name, value], both in base64.
const keyBytes = "x-redrive-bytes"

// packed returns messages whose metadata JSON preserves: encoding/json replaces bytes that are not UTF-8.
func packed(messages message.Messages) (message.Messages, error) {
	out := make(message.Messages, len(messages))
	for i, m := range messages {
		out[i] = m
		var pairs [][2][]byte
		for name, value := range m.Metadata {
			if !utf8.ValidString(name) || !utf8.ValidString(value) {
				pairs = append(pairs, [2][]byte{[]byte(name), []byte(value)})
			}
		}
		if pairs == nil {
			continue
		}
		text, err := json.Marshal(pairs)
		if err != nil {
			return nil, err
		}
		out[i] = m.Copy()
		for _, pair := range pairs {
			delete(out[i].Metadata, string(pair[0]))
		}
		out[i].Metadata[keyBytes] = string(text)
	}
	return out, nil
}

// unpacked is the message of a row, whatever its metadata: an error would stop the topic.
func unpacked(r wsql.Row) wsql.Row {
	r.Msg = message.NewMessage(string(r.UUID), r.Payload)
	read := message.Metadata{}
	if json.Unmarshal(r.Metadata, &read) == nil {
		maps.Copy(r.Msg.Metadata, read)
	} else if len(r.Metadata) > 0 {
		r.Msg.Metadata["x-metadata"] = string(r.Metadata) // another producer's; nothing of it is lost
	}
	if text, ok := r.Msg.Metadata[keyBytes]; ok {
		var pairs [][2][]byte
		if json.Unmarshal([]byte(text), &pairs) == nil {
			delete(r.Msg.Metadata, keyBytes)
			for _, pair := range pairs {
				r.Msg.Metadata[string(pair[0])] = string(pair[1])
			}
		}
	}
	return r
}
