package nats

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/wait"
)

// transport is a connection to a NATS server or cluster.
type transport struct {
	cfg  brokers.Config
	conn *nats.Conn
	js   jetstream.JetStream

	mu      sync.Mutex
	streams map[*stream]struct{} // open ones
	floors  map[string]floor     // by stream and subject of the retries
	counted map[string]struct{}  // topics
}

// reserved is the part of max_payload that a published message must leave: for a failure, and for our headers.
const reserved = driver.Headroom + 4<<10

var (
	_ driver.Transport     = (*transport)(nil)
	_ driver.ReaderCounter = (*transport)(nil)
)

// Publish implements driver.Transport. It sends all messages before it waits for the first answer.
func (t *transport) Publish(ctx context.Context, out []driver.Outgoing) []error {
	errs := t.publish(ctx, out)
	for i, o := range out {
		if !errors.Is(errs[i], jetstream.ErrNoStreamResponse) {
			continue
		}
		// The stream is missing, or currently has no leader.
		if o.ExistingOnly {
			_, errs[i] = t.stream(ctx, topicOf(o.To))
		} else {
			_, errs[i] = t.declareStream(ctx, topicOf(o.To))
		}
		if errs[i] == nil {
			errs[i] = t.publish(ctx, out[i:i+1])[0]
		}
	}
	return errs
}

func (t *transport) publish(ctx context.Context, out []driver.Outgoing) []error {
	futures, errs := make([]jetstream.PubAckFuture, len(out)), make([]error, len(out))
	consumers := map[*driver.Destination]error{}
	for i := range out {
		if errs[i] = t.checkConsumer(ctx, &out[i], consumers); errs[i] != nil {
			continue
		}
		var m *nats.Msg
		if m, errs[i] = t.addressed(&out[i]); errs[i] == nil {
			futures[i], errs[i] = t.js.PublishMsgAsync(m, jetstream.WithStallWait(t.cfg.PublishTimeout))
		}
	}
	for i, f := range futures {
		if f != nil {
			select {
			case <-f.Ok():
			case err := <-f.Err():
				errs[i] = err
			case <-ctx.Done():
				errs[i] = context.Cause(ctx)
			}
		}
		errs[i] = translate(errs[i])
	}
	return errs
}

// checkConsumer fails if o may only go to an existing consumer and there is none: the stream would keep the message
// unread. known caches the results.
func (t *transport) checkConsumer(ctx context.Context, o *driver.Outgoing, known map[*driver.Destination]error) error {
	if !o.ExistingOnly || o.To.Kind != driver.ToConsumer {
		return nil
	}
	err, checked := known[o.To]
	if !checked {
		_, _, err = t.consumer(ctx, o.To.Topic, o.To.Consumer)
		known[o.To] = err
	}
	return err
}

// ask makes a request of JetStream's API, and repeats it: a cluster mostly never answers what it receives without a
// leader, at its start and for seconds after a leader was killed. The server may carry out such an attempt.
func ask[T any](ctx context.Context, request func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	pausing := wait.Backoff{First: 20 * time.Millisecond, Longest: time.Second}
	for n := 1; ; n++ {
		attempt, end := context.WithTimeout(ctx, time.Duration(min(n, 2))*3*time.Second) // servers may be slow
		answer, err := request(attempt)
		end()
		if err == nil || !temporary(err, n) || wait.For(ctx, pausing.After(n)) != nil {
			return answer, err
		}
	}
}

// temporary reports whether to repeat a request after n attempts. nats-server 2.12 deletes the files of a deleted
// stream in the background, and until then may fail to create another with its name; a cluster that starts has too few
// servers for a stream's replicas, and so has one that is too small.
func temporary(err error, n int) bool {
	const noPeers, streamCreate, few = 10005, 10049, 10 // over 4 s
	return unavailable(err) || n < few && (hasCode(err, streamCreate) || hasCode(err, noPeers))
}

// unavailable reports whether JetStream has no leader or does not answer. What has all its replicas on servers that
// restart is offline.
func unavailable(err error) bool {
	const notAvailable, streamOffline, consumerOffline = 10008, 10118, 10119
	return errors.Is(err, context.DeadlineExceeded) || hasCode(err, notAvailable) || hasCode(err, streamOffline) ||
		hasCode(err, consumerOffline)
}

// Readers implements driver.ReaderCounter. The server counts requests for messages. A process whose window is full has
// none there, and neither has one that died with a full window: the number of readers is then unknown.
func (t *transport) Readers(ctx context.Context, to *driver.Destination) (int, error) {
	_, c, err := t.consumer(ctx, to.Topic, to.Consumer)
	if errors.Is(err, brokers.ErrUnroutable) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	info := c.CachedInfo()
	if info.NumWaiting == 0 && info.NumAckPending > 0 {
		return 0, fmt.Errorf("nats: readers of %s: no reader is waiting, and %d messages are not acked: %w", info.Name,
			info.NumAckPending, errors.ErrUnsupported)
	}
	return info.NumWaiting, nil
}

// Reaches implements driver.Reacher. Neither servers nor accounts have names that differ for certain: streams have a
// time of creation.
func (t *transport) Reaches(ctx context.Context, o *driver.Outgoing, from driver.Transport) (bool, error) {
	other, ok := from.(*transport)
	if !ok {
		return false, nil
	}
	here, err := t.stream(ctx, o.To.Topic)
	if errors.Is(err, brokers.ErrUnroutable) {
		return false, nil
	}
	there, otherErr := other.stream(ctx, o.To.Topic)
	if err = errors.Join(err, otherErr); err != nil {
		return false, err
	}
	return here.CachedInfo().Created.Equal(there.CachedInfo().Created), nil
}

// stream looks up the stream of a topic.
func (t *transport) stream(ctx context.Context, topic string) (jetstream.Stream, error) {
	name, err := ask(ctx, func(ctx context.Context) (string, error) {
		return t.js.StreamNameBySubject(ctx, placeOf(topic).subject)
	})
	if err != nil {
		return nil, missing(err)
	}
	s, err := ask(ctx, func(ctx context.Context) (jetstream.Stream, error) { return t.js.Stream(ctx, name) })
	return s, missing(err)
}

// consumer looks up the consumer of a group, and its stream.
func (t *transport) consumer(ctx context.Context, topic, group string) (jetstream.Stream, jetstream.Consumer, error) {
	s, err := t.stream(ctx, topic)
	if err != nil {
		return nil, nil, err
	}
	c, _, err := t.find(ctx, s.CachedInfo().Config.Name, topic, group)
	return s, c, missing(err)
}

func topicOf(to *driver.Destination) string {
	if to.Kind == driver.ToDeadLetters {
		return to.Names.Dead
	}
	return to.Topic
}

// addressed converts o to a message for its subject, or to a schedule for it.
func (t *transport) addressed(o *driver.Outgoing) (*nats.Msg, error) {
	p, m := placeOf(topicOf(o.To)), render(o)
	m.Subject = p.subject
	kind := "first"
	if o.To.Kind == driver.ToConsumer {
		m.Subject = p.retries(o.To.Consumer)
		if !o.First {
			kind = retriesToken(o.To.Consumer)
		}
	}
	if !o.Due.IsZero() {
		t.counts(topicOf(o.To))
		m.Header[targetHeader] = []string{m.Subject}
		m.Header[scheduleHeader] = []string{"@at " + o.Due.UTC().Format(time.RFC3339Nano)}
		m.Subject = p.schedule(kind, rand.Text())
	}
	if limit := t.conn.MaxPayload() - driver.Headroom; o.First && o.To.Kind == driver.ToTopic && size(m) > limit {
		return nil, fmt.Errorf("%d bytes with its headers, at most %d: %w", size(m), limit, brokers.ErrTooLarge)
	}
	return m, nil
}

func size(m *nats.Msg) int64 {
	n := len(m.Data)
	for key, values := range m.Header {
		n += len(key) + len(values[0]) + len(": \r\n")
	}
	return int64(n)
}

// translate turns errors of the client and the server into those that callers check.
func translate(err error) error {
	const messageSizeExceedsMaximum, schedulesDisabled = 10054, 10188
	switch {
	case errors.Is(err, nats.ErrMaxPayload), hasCode(err, messageSizeExceedsMaximum):
		return fmt.Errorf("%w: %w", brokers.ErrTooLarge, err)
	case hasCode(err, schedulesDisabled):
		return fmt.Errorf("%w: the stream does not allow message schedules: %w", brokers.ErrUnsupported, err)
	}
	return err
}

func hasCode(err error, code jetstream.ErrorCode) bool {
	api, ok := errors.AsType[jetstream.JetStreamError](err)
	return ok && api.APIError() != nil && api.APIError().ErrorCode == code
}

// Capabilities implements driver.Transport.
func (t *transport) Capabilities() brokers.Capabilities {
	longest := envelope.MaxDelay
	if age := t.cfg.Params.Duration("max-age"); age > 0 {
		longest = min(longest, age-age/10) // a schedule is a message too
	}
	return brokers.Capabilities{
		Scheme: Scheme, Durable: true, Ordered: t.cfg.Concurrency == 1, Groups: true, DeliveryCount: true,
		MaxDelay: longest, DelayTolerance: time.Second, MaxMessageBytes: t.conn.MaxPayload() - reserved,
	}
}

// Traits implements driver.Transport. NackPause is not set: the server counts a nack as it counts a crash.
func (t *transport) Traits() driver.Traits {
	return driver.Traits{Name: Scheme, StablePosition: true}
}

// Ping implements driver.Transport.
func (t *transport) Ping(ctx context.Context) error {
	if _, err := ask(ctx, t.js.AccountInfo); err != nil {
		return fmt.Errorf("JetStream does not answer: %w", err)
	}
	return nil
}

// Close implements driver.Transport.
func (t *transport) Close(ctx context.Context) error {
	defer t.conn.Close()
	if !t.conn.IsConnected() {
		return nil
	}
	return t.conn.FlushWithContext(ctx)
}

// reconnected makes every stream request again, because its requests were lost with the connection.
func (t *transport) reconnected() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for s := range t.streams {
		s.mu.Lock()
		s.requested, s.heard = 0, time.Now()
		s.mu.Unlock()
		wait.Signal(s.need)
	}
}

const (
	uuidHeader = "_watermill_message_uuid" // watermill-nats' own
	// oddHeader holds the headers that NATS cannot carry, encoded like the query of a URL.
	oddHeader = "Redrive-Headers"

	idHeader     = "Nats-Msg-Id"
	releaseID    = "redrive-release " // begins the id of a suspect that was stored again; the rest is its delivery
	statusHeader = "Status"

	scheduleHeader = "Nats-Schedule"
	targetHeader   = "Nats-Schedule-Target"
	schedulerFrom  = "Nats-Scheduler"     // set by the server on a fired schedule
	schedulerNext  = "Nats-Schedule-Next" // likewise
)

// render converts o to a message without a subject.
func render(o *driver.Outgoing) *nats.Msg {
	m := &nats.Msg{Data: o.Message.Payload, Header: make(nats.Header, len(o.Message.Metadata)+len(o.Extra)+3)}
	odd := url.Values{}
	for key, value := range o.Headers() {
		if isPlainKey(key) && isPlainValue(value) {
			m.Header[key] = []string{value}
		} else {
			odd.Set(key, value)
		}
	}
	if id := o.Message.UUID; isPlainValue(id) {
		m.Header[uuidHeader] = []string{id}
	} else {
		odd.Set(uuidHeader, id)
	}
	if len(odd) > 0 {
		m.Header[oddHeader] = []string{odd.Encode()}
	}
	return m
}

// isPlainKey reports whether a header of that name arrives unchanged. The client drops names that are not HTTP tokens,
// and the server interprets its own.
func isPlainKey(key string) bool {
	if key == "" || key == uuidHeader || key == oddHeader || key == statusHeader || isServers(key) {
		return false
	}
	return !strings.ContainsFunc(key, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
	})
}

// isServers reports whether the server interprets the header.
func isServers(key string) bool {
	const prefix = "nats-"
	return len(key) >= len(prefix) && strings.EqualFold(key[:len(prefix)], prefix)
}

func isPlainValue(value string) bool {
	return value == "" || strings.IndexByte(value, '\n') < 0 && strings.IndexByte(value, '\r') < 0 &&
		value[0] > ' ' && value[len(value)-1] > ' '
}

// parse converts m to a message that shares nothing with it.
func parse(m *nats.Msg) *message.Message {
	out := message.NewMessage("", append([]byte{}, m.Data...))
	headers := out.Metadata
	for key, values := range m.Header {
		headers[key] = values[0]
	}
	delete(headers, schedulerFrom)
	delete(headers, schedulerNext)
	if strings.HasPrefix(headers[idHeader], releaseID) {
		delete(headers, idHeader)
	}
	if odd, err := url.ParseQuery(headers[oddHeader]); err == nil { // otherwise it is foreign
		delete(headers, oddHeader)
		for key, values := range odd {
			headers[key] = values[0]
		}
	}
	out.UUID = headers[idHeader] // the id given by another producer
	if id, ours := headers[uuidHeader]; ours {
		out.UUID = id
	}
	delete(headers, uuidHeader)
	return out
}
