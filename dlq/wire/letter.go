package wire

import (
	"encoding/json"
	"fmt"
	"time"
)

// Version is the version of the lines of an export and of the records of a spool.
const Version = 2

// Letter is a line of an export: an entry with every revision of its body, in order.
type Letter struct {
	Version int `json:"v"`
	// Redacted means that values are hidden: an import refuses the line, because they would be lost.
	Redacted bool   `json:"redacted,omitzero"`
	Entry    Entry  `json:"entry"`
	Bodies   []Body `json:"bodies"`
}

// Record is a record of a spool: a dead letter, or the outcome of a redrive.
type Record struct {
	Version  int          `json:"v"`
	Dead     *EntryDetail `json:"dead,omitempty"`
	Redriven *Redriven    `json:"redriven,omitempty"`
}

// Redriven is the success of a redriven message, as its consumer reported it.
type Redriven struct {
	ID        int64     `json:"id"`
	MessageID string    `json:"message_id"`
	Topic     string    `json:"topic,omitempty"`
	Consumer  string    `json:"consumer,omitempty"`
	Number    int       `json:"number,omitempty"`
	At        time.Time `json:"at"`
}

// VersionError is the error for a line or a record of a version that this program cannot read.
type VersionError struct {
	Version int
}

// Error names both versions.
func (e *VersionError) Error() string {
	return fmt.Sprintf("version %d cannot be read: this program reads version %d", e.Version, Version)
}

// UnmarshalJSON refuses a line of another version, before anything else in it: its fields may have other types.
func (l *Letter) UnmarshalJSON(data []byte) error {
	if err := checkVersion(data); err != nil {
		return err
	}
	type plain Letter
	return json.Unmarshal(data, (*plain)(l))
}

// UnmarshalJSON refuses a record of another version, as for a [Letter].
func (r *Record) UnmarshalJSON(data []byte) error {
	if err := checkVersion(data); err != nil {
		return err
	}
	type plain Record
	return json.Unmarshal(data, (*plain)(r))
}

func checkVersion(data []byte) error {
	var line struct {
		Version int `json:"v"`
	}
	if err := json.Unmarshal(data, &line); err != nil {
		return err
	}
	if line.Version != Version {
		return &VersionError{line.Version}
	}
	return nil
}
