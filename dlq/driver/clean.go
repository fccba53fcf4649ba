package driver

import "github.com/redrive-go/redrive/dlq/internal/text"

// Clean makes every text of an entry valid for the columns of any database: UTF-8, without NUL, bounded. What it cuts
// or replaces is still in the headers and the payload, which are bytes. Stores call it, because captures, spools,
// imports and collectors all end there.
func (e *Entry) Clean() {
	for _, name := range []*string{
		&e.EventID, &e.EventType, &e.SourceTable, &e.SourceID, &e.CorrelationID, &e.Handler, (*string)(&e.Reason),
		&e.ErrorCode,
		&e.ErrorClass, &e.Rule, &e.Origin.Broker, &e.Origin.Topic, &e.Origin.Consumer, &e.Origin.Exchange, &e.Origin.Position,
		&e.Origin.RedriveTo, &e.ResolvedBy, &e.ChangedBy,
	} {
		*name = text.Clean(*name, text.MaxName)
	}
	e.ErrorMessage = text.Clean(e.ErrorMessage, text.MaxError)
	e.Cause = text.Clean(e.Cause, text.MaxError)
	if e.Body == nil {
		return
	}
	contentType, trace := text.Clean(e.Body.ContentType, text.MaxName), text.Clean(e.Body.Trace, text.MaxTrace)
	if contentType != e.Body.ContentType || trace != e.Body.Trace {
		body := *e.Body // it may be the caller's
		body.ContentType, body.Trace = contentType, trace
		e.Body = &body
	}
}
