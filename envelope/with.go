package envelope

import (
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// WithError returns a copy whose last error is err, bounded for transmission. Earlier errors are not kept.
func (e Envelope) WithError(err Error) Envelope {
	err = err.bounded()
	if e.mode == Structured {
		out := e.edited(e.body.set(e.body.err, "error", err.appendJSON(nil)))
		return out.withHeaders(dropErrorHeaders)
	}
	return e.withHeaders(err.setHeaders)
}

// WithIncrementedRetry returns a copy whose retry count is one higher.
func (e Envelope) WithIncrementedRetry() Envelope {
	count := strconv.Itoa(min(e.RetryCount()+1, MaxRetryCount))
	out := e
	if e.mode == Structured {
		out = e.edited(e.body.set(e.body.retry, "retry_count", []byte(count)))
	}
	return out.withHeaders(func(md message.Metadata) {
		if _, ok := md[KeyRetryCount]; ok || e.mode == Binary {
			md[KeyRetryCount] = count
		}
	})
}

// WithMetadata returns a copy with one metadata value set. A name that belongs to the envelope (IsOurs, but not
// correlation_id) is an error.
func (e Envelope) WithMetadata(key, value string) (Envelope, error) { return e.WithMeta(key, value) }

// WithMeta is WithMetadata for values of any type that encoding/json supports, see Meta.
func (e Envelope) WithMeta(key string, value any) (Envelope, error) {
	if err := reservedName("", key); err != nil {
		return e, err
	}
	v, err := entryOf(value)
	if err != nil {
		return e, fmt.Errorf("envelope: metadata %q: %w", key, err)
	}
	if e.mode == Structured {
		entries := e.body.entries()
		if entries == nil {
			entries = make(map[string]entry, 1)
		}
		entries[key] = v
		return e.edited(e.body.set(e.body.metadata, "metadata", appendEntries(nil, entries))), nil
	}
	return e.withHeaders(func(md message.Metadata) { v.set(md, key) }), nil
}

// WithData returns a copy with other data, encoded as in New.
func (e Envelope) WithData(data any) (Envelope, error) {
	payload, err := encodeData(data)
	if err != nil {
		return e, fmt.Errorf("envelope: data: %w", err)
	}
	if e.mode == Structured {
		return e.edited(edit{e.body.dataMember, appendDataMember(nil, payload)}), nil
	}
	e.payload = payload
	return e, nil
}

// WithOriginalDelay returns a copy whose backoff is based on d, clamped to [0, MaxDelay] and truncated to whole
// milliseconds.
func (e Envelope) WithOriginalDelay(d time.Duration) Envelope {
	d, _ = clampDelay(d)
	return e.withHeaders(func(md message.Metadata) { md[KeyOriginalDelay] = formatMillis(d) })
}

// WithMode returns a copy that Message renders in the given mode. A round trip is lossless: data, metadata of any JSON
// type, unknown members, and the spelling of all of them.
func (e Envelope) WithMode(mode Mode) Envelope {
	e.want = mode
	return e
}

// edited returns a copy with another body.
func (e Envelope) edited(edits ...edit) Envelope {
	e.payload = e.body.splice(edits...)
	e.body.scan(e.payload)
	return e
}

// withHeaders returns a copy with headers modified by change.
func (e Envelope) withHeaders(change func(md message.Metadata)) Envelope {
	headers := maps.Clone(e.headers)
	if headers == nil {
		headers = make(message.Metadata)
	}
	change(headers)
	e.headers = headers
	return e
}

func dropErrorHeaders(md message.Metadata) {
	delete(md, KeyErrorMessage)
	delete(md, KeyErrorCode)
	delete(md, KeyErrorTrace)
}
