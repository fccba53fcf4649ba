package wire

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
)

// Version is the version of the lines of an export and of the records of a spool. Older versions can be read.
const Version = 2

// Letter is a line of an export: an entry with every revision of its body, in order.
type Letter struct {
	Version  int    `json:"v"`
	Redacted bool   `json:"redacted,omitzero"` // something was hidden: not to be imported
	Entry    Entry  `json:"entry"`
	Bodies   []Body `json:"bodies"`
}

// Record is a record of a spool: a dead letter, or the outcome of a redrive.
type Record struct {
	Version  int          `json:"v"`
	Dead     *EntryDetail `json:"dead,omitempty"`
	Redriven *Redriven    `json:"redriven,omitempty"`
}

// Redriven means that a consumer has handled the redriven message.
type Redriven struct {
	ID        int64     `json:"id"`
	MessageID string    `json:"message_id"`
	Topic     string    `json:"topic,omitempty"`
	Consumer  string    `json:"consumer,omitempty"`
	Number    int       `json:"number,omitempty"`
	At        time.Time `json:"at"`
}

// VersionError is the error of a line or a record whose version this program cannot read.
type VersionError struct {
	Version int
}

// Error names both versions.
func (e *VersionError) Error() string {
	return fmt.Sprintf("version %d is not one that this program reads (1 to %d)", e.Version, Version)
}

// versionOf reads the version of a line or a record.
func versionOf(data []byte) (int, error) {
	var line struct {
		Version int `json:"v"`
	}
	if err := json.Unmarshal(data, &line); err != nil {
		return 0, err
	}
	if line.Version < 1 || line.Version > Version {
		return 0, &VersionError{line.Version}
	}
	return line.Version, nil
}

// UnmarshalJSON reads a line of any version so far.
func (l *Letter) UnmarshalJSON(data []byte) error {
	version, err := versionOf(data)
	if err != nil {
		return err
	}
	if version > 1 {
		type plain Letter
		return json.Unmarshal(data, (*plain)(l))
	}
	var old struct {
		Redacted bool    `json:"redacted"`
		Entry    Entry   `json:"entry"`
		Bodies   []body1 `json:"bodies"`
	}
	if err := json.Unmarshal(data, &old); err != nil {
		return err
	}
	*l = Letter{Version: version, Redacted: old.Redacted, Entry: old.Entry}
	for i := range old.Bodies {
		l.Bodies = append(l.Bodies, old.Bodies[i].body())
	}
	return nil
}

// UnmarshalJSON reads a record of any version so far.
func (r *Record) UnmarshalJSON(data []byte) error {
	version, err := versionOf(data)
	if err != nil {
		return err
	}
	if version > 1 {
		type plain Record
		return json.Unmarshal(data, (*plain)(r))
	}
	var old struct {
		Dead     json.RawMessage `json:"dead"`
		Redriven *Redriven       `json:"redriven"`
	}
	if err := json.Unmarshal(data, &old); err != nil {
		return err
	}
	*r = Record{Version: version, Redriven: old.Redriven}
	if old.Dead == nil {
		return nil
	}
	// One object had the fields of the entry and of its body.
	var (
		letter EntryDetail
		body   body1
		number struct {
			Redrive int `json:"redrive"`
		}
	)
	for _, into := range []any{&letter.Entry, &body, &number} {
		if err := json.Unmarshal(old.Dead, into); err != nil {
			return err
		}
	}
	letter.Status, letter.Version = "PENDING", 1
	letter.CreatedAt, letter.LastSeenAt, letter.ChangedAt = letter.DiedAt, letter.DiedAt, letter.DiedAt
	letter.SeenCount, letter.DeathRedrive, letter.RedriveCount = 1, number.Redrive, number.Redrive
	letter.Body = body.body()
	r.Dead = &letter
	return nil
}

// body1 is a body in files of version 1.
type body1 struct {
	Revision    int     `json:"revision"`
	UUID        Text    `json:"uuid"`
	ContentType Text    `json:"content_type"`
	Headers     Headers `json:"headers"`
	Trace       Text    `json:"trace"`
	SHA256      []byte  `json:"sha256"`
	Payload     []byte  `json:"payload"`
}

func (b *body1) body() Body {
	body := Body{Revision: b.Revision, UUID: b.UUID, ContentType: b.ContentType, Headers: b.Headers, StackTrace: b.Trace}
	body.SetBytes(b.Payload)
	body.SHA256 = hex.EncodeToString(b.SHA256) // as written, to be compared with that of the bytes read
	return body
}
