package envelope

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

// frame is what surrounded the data in a structured body, plus the headers of its message, so that a binary message can
// be restored to the same structured one. It is transmitted as one header, base64 of JSON. Later changes take
// precedence over the frame, which only restores the spelling of unchanged parts.
type frame struct {
	Body    []byte            `json:"body"`              // the body without the value of data
	At      int               `json:"at"`                // where the value was; -1: Body is whole
	Base64  bool              `json:"base64,omitempty"`  // the value is a string of base64
	Keep    [][]byte          `json:"keep,omitempty"`    // headers that were not metadata
	Restore map[string][]byte `json:"restore,omitempty"` // headers that the conversion removed or may change
}

// addFrame adds the frame of the structured envelope to the headers of its binary form.
func (e Envelope) addFrame(md message.Metadata) {
	s := &e.body
	at := s.data
	f := frame{Base64: s.data64.ok()}
	if f.Base64 {
		at = s.data64
	}
	f.At = at.start
	data, _ := s.payload()
	if f.Base64 && !bytes.Equal(appendBase64(nil, data), at.of(s.raw)) {
		f.Body, f.At = s.raw, -1 // base64 with escapes: only the whole body is exact
	} else {
		f.Body = append(bytes.Clone(s.raw[:at.start]), s.raw[at.end:]...)
	}
	for _, key := range slices.Sorted(maps.Keys(e.headers)) { // sorted: equal envelopes have equal frames
		value := e.headers[key]
		if !isReserved(key) {
			f.Keep = append(f.Keep, []byte(key))
		} else if now, ok := md[key]; !ok || now != value || slices.Contains(fieldKeys[:], key) {
			if f.Restore == nil {
				f.Restore = make(map[string][]byte)
			}
			f.Restore[key] = []byte(value)
		}
	}
	text, err := json.Marshal(f)
	if err != nil {
		return // unreachable: a frame holds bytes and numbers; without it the conversion is refused
	}
	md[KeyFrame] = base64.StdEncoding.EncodeToString(text)
}

func readFrame(md message.Metadata) (f frame, ok bool) {
	encoded, ok := md[KeyFrame]
	if !ok {
		return f, false
	}
	text, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || json.Unmarshal(text, &f) != nil {
		return f, false
	}
	return f, f.At >= -1 && f.At <= len(f.Body)
}

// fill inserts the data into the frame's body. It reports false if they do not fit, for example because JSON was
// replaced by other data.
func (f *frame) fill(data []byte) (s body, ok bool) {
	raw := f.Body
	if f.At >= 0 {
		raw = append(make([]byte, 0, len(f.Body)+len(data)*4/3+8), f.Body[:f.At]...)
		switch {
		case f.Base64:
			raw = appendBase64(raw, data)
		case embeddable(data):
			raw = append(raw, data...)
		default:
			return s, false
		}
		raw = append(raw, f.Body[f.At:]...)
	}
	whole := s.scan(raw)
	if s.check(whole) != nil {
		return s, false
	}
	filled, err := s.payload()
	return s, err == nil && bytes.Equal(filled, data)
}

// refilled returns a binary envelope in structured mode, with the body from its frame.
func (e Envelope) refilled(f frame) (Envelope, bool) {
	s, ok := f.fill(e.payload)
	if !ok {
		return e, false
	}
	md := maps.Clone(e.headers)
	restored := make(message.Metadata, len(f.Restore))
	for key, value := range f.Restore {
		restored[key] = string(value)
	}
	edits := s.changedFields(md)
	now, nowValid := retryCount(md, nil)
	was, wasValid := retryCount(restored, &s)
	recounted := now != was || nowValid != wasValid
	if recounted {
		edits = append(edits, s.set(s.retry, "retry_count", appendRetryCount(nil, md)))
	}
	edits = append(edits, s.changedMetadata(md, f.Keep)...)
	for _, key := range fieldKeys {
		delete(md, key)
	}
	delete(md, KeyFrame)
	if _, declared := f.Restore[KeyContentType]; declared && md[KeyContentType] != "" {
		md[KeyDataContentType] = md[KeyContentType]
		delete(md, KeyContentType)
	}
	maps.Copy(md, restored)
	if _, ok := md[KeyRetryCount]; ok && recounted {
		md[KeyRetryCount] = e.headers[KeyRetryCount]
	}
	out := Envelope{mode: Structured, want: e.want, uuid: e.uuid, headers: md, body: s, origin: e.origin}
	return out.edited(edits...), true
}

// changedFields returns the edits for fields, except the retry count, whose header differs from the body.
func (s *body) changedFields(md message.Metadata) (edits []edit) {
	for _, f := range s.textFields() {
		if header := md[f.key]; !f.says(header) && (header != "" || f.text != "") {
			edits = append(edits, s.set(f.at, f.name, appendString(nil, header)))
		}
	}
	if err := headerError(md); !sameError(err, s.lastError()) {
		edits = append(edits, s.set(s.err, "error", appendError(nil, err)))
	}
	return edits
}

// changedMetadata removes the metadata from the headers and returns the edit that they require in the body, if any.
func (s *body) changedMetadata(md message.Metadata, keep [][]byte) []edit {
	isKept := make(map[string]bool, len(keep))
	for _, key := range keep {
		isKept[string(key)] = true
	}
	isJSON := jsonNames(md)
	now := make(map[string]entry)
	was := s.entries()
	for key, v := range was {
		if !headerName(key) {
			now[key] = v // it could not be a header, so it was not changed
			continue
		}
		for _, header := range [...]string{KeyMetadataPrefix + key, key} {
			if value, ok := md[header]; ok && !isKept[header] && (header != key || !isReserved(key)) {
				now[key] = newEntry(value, isJSON[key])
				delete(md, header)
				break
			}
		}
	}
	for key, value := range md {
		if !isReserved(key) && !isKept[key] && movableEntry(key, value) {
			now[key] = newEntry(value, isJSON[key]) // added in binary mode
			delete(md, key)
		}
	}
	if maps.Equal(now, was) {
		return nil
	}
	return []edit{s.set(s.metadata, "metadata", appendEntries(nil, now))}
}
