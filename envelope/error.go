package envelope

import "errors"

// ErrMalformed is wrapped by errors about a message whose body claims to be an envelope but is unreadable. The message
// itself is untouched, so that its exact bytes can be dead-lettered.
var ErrMalformed = errors.New("envelope: malformed structured body")

// Error is the last error of a message, as it is transmitted. Earlier ones are not kept.
type Error struct {
	// Message is the error's text, at most MaxErrorMessage bytes once recorded.
	Message string `json:"message"`
	// Code is a short code of the user's choice, a string even if it is a number ("500").
	Code string `json:"code"`
	// Trace is a stack trace, at most MaxErrorTrace bytes once recorded.
	Trace string `json:"trace"`
}

// bounded returns the error as it may be transmitted: limited in size and valid UTF-8.
func (e Error) bounded() Error {
	return Error{
		Message: boundText(e.Message, MaxErrorMessage),
		Code:    boundText(e.Code, maxName),
		Trace:   boundText(e.Trace, MaxErrorTrace),
	}
}

// appendJSON appends the error as the JSON object of the schema.
func (e Error) appendJSON(b []byte) []byte {
	b = append(b, `{"message":`...)
	b = appendString(b, e.Message)
	b = append(b, `,"code":`...)
	b = appendString(b, e.Code)
	b = append(b, `,"trace":`...)
	b = appendString(b, e.Trace)
	return append(b, '}')
}
