package envelope

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// DataError is the error of data that do not decode into the handler's type. It is permanent, because no retry helps.
type DataError struct {
	// Type is the requested Go type.
	Type string
	// Err is the reason, usually an error of encoding/json.
	Err error
}

// Error returns the reason with the requested type.
func (e *DataError) Error() string { return "envelope: data is not a " + e.Type + ": " + e.Err.Error() }

// Unwrap returns the reason.
func (e *DataError) Unwrap() error { return e.Err }

// Permanent returns true: the same bytes will never decode.
func (e *DataError) Permanent() bool { return true }

// Data decodes the envelope's data as JSON into a T; []byte and json.RawMessage get the data unchanged. The error is a
// *DataError. If the data are a job of Laravel's own queue, its data member is decoded; a job that is a serialized PHP
// object cannot be decoded, which is an error.
func Data[T any](e Envelope) (T, error) { return decodeData[T](e.data()) }

// Handle makes a Watermill handler of a function that takes the decoded data, in either mode. Data that do not decode
// cause a *DataError, which the pipeline's classifier treats as permanent. The context is the message's.
func Handle[T any](fn func(ctx context.Context, data T) error) message.NoPublishHandlerFunc {
	if fn == nil {
		panic("envelope: Handle needs a function")
	}
	return func(m *message.Message) error {
		data, err := messageData(m)
		if err != nil {
			return dataError[T](err)
		}
		v, err := decodeData[T](data)
		if err != nil {
			return err
		}
		return fn(m.Context(), v)
	}
}

// messageData returns the data of a message without building an envelope.
func messageData(m *message.Message) ([]byte, error) {
	var s body
	mode, err := s.read(m)
	if mode == Binary || err != nil {
		return m.Payload, err
	}
	return s.payload()
}

func decodeData[T any](data []byte) (T, error) {
	var v T
	switch p := any(&v).(type) {
	case *[]byte:
		*p = bytes.Clone(data)
	case *json.RawMessage:
		*p = bytes.Clone(data)
	default:
		data, err := jobData(data)
		if err != nil {
			return v, dataError[T](err)
		}
		if err := json.Unmarshal(data, &v); err != nil {
			return v, dataError[T](err)
		}
	}
	return v, nil
}

func dataError[T any](err error) error {
	return &DataError{Type: fmt.Sprintf("%T", *new(T)), Err: err}
}

// jobData returns the data of a job of Laravel's own queue, which is not an envelope: its data member if that is plain
// JSON, or an error if it is a serialized PHP object. Decoded as a whole, either would give the handler's type its zero
// value and no error. All other data are returned unchanged.
func jobData(data []byte) ([]byte, error) {
	if !bytes.Contains(data, []byte(`"displayName"`)) || !bytes.Contains(data, []byte(`"job"`)) {
		return data, nil
	}
	var job struct {
		DisplayName string          `json:"displayName"`
		Job         string          `json:"job"`
		Data        json.RawMessage `json:"data"`
	}
	err := json.Unmarshal(data, &job)
	if err != nil || job.DisplayName == "" || !strings.Contains(job.Job, "@") || job.Data == nil {
		return data, nil //nolint:nilerr // it is not a job
	}
	var command struct { // of Laravel's CallQueuedHandler
		Command *json.RawMessage `json:"command"`
	}
	if json.Unmarshal(job.Data, &command) == nil && command.Command != nil {
		return nil, fmt.Errorf("%w: a job of Laravel's own queue, %s: its data are a serialized PHP object; put an "+
			"envelope on the queue instead",
			ErrMalformed, headerText(job.DisplayName, maxName))
	}
	return job.Data, nil
}
