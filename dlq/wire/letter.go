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
	return fmt.Sprintf("version %d is not the one that this program reads (%d)", e.Version, Version)
}

// UnmarshalJSON refuses a line of another version.
func (l *Letter) UnmarshalJSON(data []byte) error {
	type plain Letter
	if err := json.Unmarshal(data, (*plain)(l)); err != nil {
		return err
	}
	return checkVersion(l.Version)
}

// UnmarshalJSON refuses a record of another version.
func (r *Record) UnmarshalJSON(data []byte) error {
	type plain Record
	if err := json.Unmarshal(data, (*plain)(r)); err != nil {
		return err
	}
	return checkVersion(r.Version)
}

func checkVersion(version int) error {
	if version != Version {
		return &VersionError{version}
	}
	return nil
}
