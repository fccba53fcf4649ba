package envelope

import "strconv"

// edit replaces the bytes of a span; with an empty span at the end of the members it inserts.
type edit struct {
	at   span
	text []byte
}

// set returns the edit that gives a member a new value.
func (s *body) set(at span, name string, value []byte) edit {
	if at.ok() {
		return edit{at, value}
	}
	text := make([]byte, 0, len(name)+len(value)+4)
	text = strconv.AppendQuote(append(text, ','), name)
	text = append(append(text, ':'), value...)
	return edit{span{s.end, s.end}, text}
}

// splice returns the body with the edits applied and every other byte unchanged. The edits must not overlap.
func (s *body) splice(edits ...edit) []byte {
	size := len(s.raw)
	for i, e := range edits {
		size += len(e.text) - (e.at.end - e.at.start)
		for j := i; j > 0 && edits[j].at.start < edits[j-1].at.start; j-- {
			edits[j], edits[j-1] = edits[j-1], edits[j]
		}
	}
	out := make([]byte, 0, size)
	from := 0
	for _, e := range edits {
		out = append(append(out, s.raw[from:e.at.start]...), e.text...)
		from = e.at.end
	}
	return append(out, s.raw[from:]...)
}
