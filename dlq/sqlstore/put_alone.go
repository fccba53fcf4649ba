package sqlstore

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// putAlone is transact for the letters of one call. A letter with text that the database will never accept, because its
// character set lacks a character or an operator's constraint forbids it, would be redelivered forever and block those
// behind it in its queue: it is stored with its texts escaped. Its payload and headers are bytes and are stored as they
// are.
func (w *writer) putAlone(letters []letterRow) ([]driver.Receipt, error) {
	receipts, err := w.transact(letters)
	if err == nil || !w.refuses(err) {
		return receipts, err
	}
	receipts = make([]driver.Receipt, 0, len(letters))
	for i := range letters {
		one, err := w.transact(letters[i : i+1])
		if err != nil && w.refuses(err) {
			apart, escapeErr := w.store.setApart(&letters[i], err)
			if escapeErr != nil {
				return nil, escapeErr
			}
			one, err = w.transact([]letterRow{apart})
		}
		if err != nil {
			return nil, err
		}
		receipts = append(receipts, one...)
	}
	return receipts, nil
}

func (w *writer) refuses(err error) bool { return w.store.dialect.name().Refused(err) }

// Bounds of an escaped text, which takes up to six bytes for one.
const (
	maxEscapedName  = 200
	maxEscapedError = 4000
)

// setApart returns the letter with texts that any database accepts. Its key and its group stay the same.
func (s *Store) setApart(letter *letterRow, refusal error) (letterRow, error) {
	e, body := *letter.Entry, *letter.Body
	for _, text := range []*string{
		&e.EventID, &e.EventType, &e.SourceTable, &e.SourceID, &e.CorrelationID, &e.Handler, (*string)(&e.Reason),
		&e.ErrorCode, &e.ErrorClass,
		&e.Rule, &e.Origin.Broker, &e.Origin.Topic, &e.Origin.Consumer, &e.Origin.Exchange, &e.Origin.Position, &e.ChangedBy,
		&e.ResolvedBy,
		&body.ContentType,
	} {
		*text = escaped(*text, maxEscapedName)
	}
	e.ErrorMessage = "set apart, because the database refused a text of this dead letter (" +
		escaped(refusal.Error(), maxEscapedName) + "): " + escaped(e.ErrorMessage, maxEscapedError)
	e.Cause = escaped(e.Cause, maxEscapedError)
	body.Trace = escaped(body.Trace, maxEscapedError)
	e.Body = &body
	values, err := bodyValues(s.dialect, 0, &body)
	if err != nil {
		return letterRow{}, err
	}
	values[bodyProjection] = s.dialect.projection([]byte("{")) // none
	if values[bodyHeaders], err = binaryHeaders(&body); err != nil {
		return letterRow{}, err
	}
	return letterRow{Entry: &e, entry: entryValues(s.dialect, &e), body: values}, nil
}

// escaped returns the text in ASCII.
func escaped(text string, limit int) string {
	quoted := strconv.QuoteToASCII(text)
	quoted = strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
	return quoted[:min(len(quoted), limit)]
}

// binaryHeaders returns the stored headers in ASCII.
func binaryHeaders(b *dlq.Body) (string, error) {
	stored := storedHeaders{Text: map[string]string{}, Collected: b.Wire().Collected}
	for key, value := range b.Headers {
		stored.Binary = append(stored.Binary, [2][]byte{[]byte(key), []byte(value)})
	}
	data, err := json.Marshal(stored)
	return string(data), err
}
