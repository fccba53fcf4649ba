package envelope

// span is a part of a body: body[start:end]. The zero span means absent.
type span struct{ start, end int }

func (s span) ok() bool           { return s.end > s.start }
func (s span) of(b []byte) []byte { return b[s.start:s.end] }

// object iterates over the members of a JSON object without decoding them. It checks their syntax as strictly as
// encoding/json, in one pass and without recursion; the nesting limit counts from the object.
type object struct {
	b       []byte
	pos     int
	last    int  // end of the last member's value, or just after the opening brace
	started bool // a member was seen
	done    bool // the closing brace was seen
}

// openObject begins at the first byte that is not white space; it reports false if that is not an opening brace.
func openObject(b []byte, pos int) (object, bool) {
	pos = skipSpace(b, pos)
	if pos >= len(b) || b[pos] != '{' {
		return object{}, false
	}
	return object{b: b, pos: pos + 1, last: pos + 1}, true
}

// next returns the next member: its key between the quotes, still escaped, and its value. It reports false at the end
// of the object, with done set, and at a syntax error, without it.
func (o *object) next() (key, value span, ok bool) {
	if o.done {
		return span{}, span{}, false
	}
	i := skipSpace(o.b, o.pos)
	if i >= len(o.b) {
		return span{}, span{}, false
	}
	switch {
	case o.b[i] == '}':
		o.pos, o.done = i+1, true
		return span{}, span{}, false
	case o.started && o.b[i] != ',':
		return span{}, span{}, false
	case o.started:
		i = skipSpace(o.b, i+1)
	}
	if i >= len(o.b) || o.b[i] != '"' {
		return span{}, span{}, false
	}
	keyStart := i + 1
	if i = skipString(o.b, keyStart); i < 0 {
		return span{}, span{}, false
	}
	key = span{keyStart, i - 1}
	if i = skipSpace(o.b, i); i >= len(o.b) || o.b[i] != ':' {
		return span{}, span{}, false
	}
	i = skipSpace(o.b, i+1)
	end := skipValue(o.b, i, 1)
	if end < 0 {
		return span{}, span{}, false
	}
	o.started, o.pos, o.last = true, end, end
	return key, span{i, end}, true
}
