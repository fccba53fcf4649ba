package envelope

import (
	"bytes"
	"fmt"
)

// jobData returns the data of a job of Laravel's own queue, which is not an envelope: its data member if that is plain
// JSON, or an error if it is a serialized PHP object. Decoded as a whole, either would give the handler's type its zero
// value and no error. All other data are returned unchanged.
func jobData(data []byte) ([]byte, error) {
	if !bytes.Contains(data, []byte(`"displayName"`)) || !bytes.Contains(data, []byte(`"job"`)) {
		return data, nil
	}
	o, ok := openObject(data, skipSpace(data, 0))
	if !ok {
		return data, nil
	}
	var name, job string
	var carried span
	for {
		key, value, ok := o.next()
		if !ok {
			break
		}
		text := ""
		if data[value.start] == '"' {
			text = unquote(data[value.start+1 : value.end-1])
		}
		switch string(key.of(data)) {
		case "displayName":
			name = text
		case "job":
			job = text
		case "data":
			carried = value
		}
	}
	if name == "" || !bytes.Contains([]byte(job), []byte("@")) || !carried.ok() {
		return data, nil
	}
	if holdsCommand(data, carried) {
		return nil, fmt.Errorf("%w: a job of Laravel's own queue, %s: its data are a serialized PHP object; put an "+
			"envelope on the queue instead",
			ErrMalformed, headerText(name, maxName))
	}
	return carried.of(data), nil
}

// holdsCommand reports whether a job's data are those of Laravel's CallQueuedHandler.
func holdsCommand(raw []byte, data span) bool {
	o, ok := openObject(raw, data.start)
	for ok {
		var key span
		if key, _, ok = o.next(); ok && string(key.of(raw)) == "command" {
			return true
		}
	}
	return false
}
