package envelope

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// convert returns the envelope in the other mode.
func (e Envelope) convert() (Envelope, error) {
	if e.mode == Structured {
		return e.toBinary()
	}
	return e.toStructured()
}

// headerEntries returns the metadata of a binary message.
func headerEntries(md message.Metadata) map[string]entry {
	entries := make(map[string]entry)
	var names []string
	_ = json.Unmarshal([]byte(md[KeyMetadataJSON]), &names) // a list that is no list names nothing
	for key, value := range md {
		if !isReserved(key) {
			entries[key] = entry{value: value, isJSON: slices.Contains(names, key)}
		}
	}
	return entries
}

func setEntry(md message.Metadata, key string, v entry) { md[key] = v.value }

func appendEntries(b []byte, entries map[string]entry) []byte {
	b = append(b, '{')
	for i, key := range slices.Sorted(maps.Keys(entries)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, key), ':')
		if v := entries[key]; v.isJSON {
			b = append(b, v.value...)
		} else {
			b = appendString(b, v.value)
		}
	}
	return append(b, '}')
}

func appendDataMember(b, data []byte) []byte {
	if embeddable(data) {
		return append(append(b, `"data":`...), data...)
	}
	b = append(b, `"data_base64":"`...)
	return append(base64.StdEncoding.AppendEncode(b, data), '"')
}

// embeddable reports whether data can stand in a JSON body as they are and come out as they were.
func embeddable(data []byte) bool {
	return len(data) > 0 && data[0] > ' ' && utf8.Valid(data) && skipValue(data, 0, 1) == len(data)
}

func (e Envelope) toStructured() (Envelope, error) {
	var b []byte
	for _, f := range [...]struct{ name, key string }{
		{`{"message_id":`, KeyMessageID}, {`,"timestamp":`, KeyTimestamp}, {`,"version":`, KeyVersion},
		{`,"source":`, KeySource}, {`,"queue":`, KeyQueue},
	} {
		b = appendString(append(b, f.name...), e.headers[f.key])
	}
	b = appendDataMember(append(b, ','), e.payload)
	b = appendEntries(append(b, `,"metadata":`...), headerEntries(e.headers))
	b = append(b, `,"error":`...)
	if err := e.Err(); err != nil {
		b = err.appendJSON(b)
	} else {
		b = append(b, "null"...)
	}
	b = strconv.AppendInt(append(b, `,"retry_count":`...), int64(e.RetryCount()), 10)
	b = append(b, '}')
	headers := message.Metadata{KeyContentType: ContentType}
	out := Envelope{mode: Structured, want: Structured, uuid: e.uuid, headers: headers, payload: b, origin: e.origin}
	out.body.scan(b)
	return out, nil
}

func (e Envelope) toBinary() (Envelope, error) {
	return e, errors.New("envelope: conversion to binary is not there yet")
}
