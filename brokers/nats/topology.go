package nats

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
)

// Declare implements driver.Transport: the stream of the topic, that of its dead letters, and the group's consumer.
func (t *transport) Declare(ctx context.Context, q driver.Queue) error {
	t.counts(q.Topic)
	t.counts(q.Names.Dead)
	info, err := t.declareStream(ctx, q.Topic)
	if err != nil {
		return err
	}
	if _, err := t.declareStream(ctx, q.Names.Dead); err != nil {
		return fmt.Errorf("dead letters: %w", err)
	}
	return t.declareConsumer(ctx, info, &q)
}

// declareStream finds the stream with the topic's subject, or creates it.
func (t *transport) declareStream(ctx context.Context, topic string) (*jetstream.StreamInfo, error) {
	p := placeOf(topic)
	s, err := t.stream(ctx, topic)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound) && !t.cfg.Params.Bool("declare"):
		return nil, fmt.Errorf("no stream has the subject %s, and declare=false: %w", p.subject, brokers.ErrUnroutable)
	case errors.Is(err, jetstream.ErrStreamNotFound):
		if s, err = t.createStream(ctx, p); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, fmt.Errorf("look for the stream of %s: %w", p.subject, err)
	}
	info := s.CachedInfo()
	return info, t.usable(&info.Config, p) // a server before 2.12 ignores unknown fields of a new stream
}

func (t *transport) createStream(ctx context.Context, p place) (jetstream.Stream, error) {
	replicas := t.cfg.Params.Int("replicas")
	if replicas == 0 && t.conn.ConnectedClusterName() != "" {
		replicas = 3
	}
	replicas = max(replicas, 1)
	cfg := jetstream.StreamConfig{
		Name: p.token, Subjects: []string{p.subject, p.ownSubjects()}, Storage: jetstream.FileStorage,
		Replicas: replicas, MaxAge: t.cfg.Params.Duration("max-age"), AllowMsgSchedules: true, AllowRollup: true,
		AllowDirect: true, FirstSeq: firstSequence(),
	}
	s, err := ask(ctx, func(ctx context.Context) (jetstream.Stream, error) { return t.js.CreateStream(ctx, cfg) })
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process has created it, with other replicas
		s, err = ask(ctx, func(ctx context.Context) (jetstream.Stream, error) { return t.js.Stream(ctx, p.token) })
	}
	if err != nil {
		return nil, fmt.Errorf("create stream %s for %s with %d replicas: %w", p.token, p.subject, replicas, err)
	}
	return s, nil
}

// firstSequence lets a stream's sequence numbers begin after those of any earlier stream with its name. An ack names
// only the stream, the consumer and the number: a handler that acks a message of a deleted stream would otherwise ack
// the message with that number in the new one.
func firstSequence() uint64 { return uint64(time.Now().UnixMicro()) }

// usable refuses a stream that would lose messages or could not delay them.
func (t *transport) usable(cfg *jetstream.StreamConfig, p place) error {
	age, own := t.cfg.Params.Duration("max-age"), p.ownSubjects()
	var faults []string
	fault := func(found bool, text string) {
		if found {
			faults = append(faults, text)
		}
	}
	fault(cfg.Retention != jetstream.LimitsPolicy, "its retention is "+cfg.Retention.String()+
		", which loses the messages of a group whose consumer was deleted: set it to limits")
	fault(!slices.Contains(cfg.Subjects, own), "it lacks the subject "+own+" for retries: add it")
	fault(!cfg.AllowMsgSchedules, "it does not allow message schedules: allow them (nats-server 2.12 or later)")
	fault(cfg.MaxMsgsPerSubject > 0, "its max_msgs_per_subject loses retries, which share a subject: remove it")
	fault(cfg.Discard == jetstream.DiscardOld && (cfg.MaxMsgs > 0 || cfg.MaxBytes > 0),
		"it discards old messages, handled or not: remove max_msgs and max_bytes, and limit its max_age")
	fault(cfg.MaxAge > 0 && (age == 0 || age > cfg.MaxAge), "it deletes messages, handled or not, after "+
		cfg.MaxAge.String()+": remove its max_age, or set x-max-age to that, which limits delays too")
	fault(cfg.MaxMsgSize > 0 && int64(cfg.MaxMsgSize) < t.conn.MaxPayload(),
		"its max_msg_size, below max_payload, may refuse retries, which are larger: remove it")
	fault(cfg.SubjectTransform != nil, "it stores messages under another subject: remove its subject transform")
	fault(cfg.NoAck, "it confirms nothing: remove no_ack")
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("%w: stream %s has the subject %s but cannot be used: %s", brokers.ErrUnsupported, cfg.Name,
		p.subject, strings.Join(faults, "; "))
}

// floor is the last message that a group has acked, as far as this process knows.
type floor struct {
	incarnation string // of the stream, because sequences start over in another one
	seq         uint64
}

// floorKey identifies a topic's group, whatever its consumer is called: retries are its alone.
func floorKey(stream, retries string) string { return stream + "\x00" + retries }

// incarnation tells a stream from earlier and later ones with its name.
func incarnation(info *jetstream.StreamInfo) string {
	return strconv.FormatInt(info.Created.UnixNano(), 36)
}

// declareConsumer creates the consumer of a group, or changes it to the configuration.
func (t *transport) declareConsumer(ctx context.Context, info *jetstream.StreamInfo, q *driver.Queue) error {
	stream, declare := info.Config.Name, t.cfg.Params.Bool("declare")
	found, name, err := t.find(ctx, stream, q.Topic, q.Group)
	want := t.configOf(q, name)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound) && declare:
		return t.createConsumer(ctx, info, want)
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		return fmt.Errorf("stream %s has no consumer %s, and declare=false: %w", stream, name, brokers.ErrUnroutable)
	case err != nil:
		return fmt.Errorf("consumer %s: %w", name, err)
	case declare && !startsIn(info, found):
		if _, err := ask(ctx, func(ctx context.Context) (any, error) {
			// After an attempt whose answer was lost, another process may have recreated it.
			if found, err := t.js.Consumer(ctx, stream, name); err != nil || startsIn(info, found) {
				return nil, err
			}
			return nil, t.js.DeleteConsumer(ctx, stream, name)
		}); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return fmt.Errorf("delete consumer %s, which would skip messages of stream %s: %w", name, stream, err)
		}
		return t.createConsumer(ctx, info, want)
	}
	return t.adjust(ctx, stream, found.CachedInfo().Config, &want)
}

// find looks up the consumer of a group, and returns its name even if it is missing. The name is the group's, unless
// that consumer reads another topic, which an operator has put into the same stream: then it names the topic too.
func (t *transport) find(ctx context.Context, stream, topic, group string) (jetstream.Consumer, string, error) {
	p, name, have := placeOf(topic), tokenOf(group), jetstream.ConsumerConfig{}
	look := func(name string) (jetstream.Consumer, error) {
		return ask(ctx, func(ctx context.Context) (jetstream.Consumer, error) { return t.js.Consumer(ctx, stream, name) })
	}
	c, err := look(name)
	if err == nil {
		have = c.CachedInfo().Config
	}
	does, may := reads(&have, p.subject, p.retries(group))
	if does || err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return c, name, err
	}
	own := tokenOf(group + "\x00" + topic)
	if found, err := look(own); !may || !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return found, own, err
	}
	return c, name, err
}

// reads reports whether a consumer reads the topic with these subjects, or may be changed to: not if it has filters for
// others only. One with a wildcard may have been made for this topic.
func reads(cfg *jetstream.ConsumerConfig, subjects ...string) (does, may bool) {
	filters := append([]string{cfg.FilterSubject}, cfg.FilterSubjects...)
	does = slices.ContainsFunc(subjects, func(s string) bool { return slices.Contains(filters, s) })
	all := strings.Join(filters, "")
	return does, does || all == "" || strings.ContainsAny(all, "*>")
}

// configOf is the configuration of a group's consumer.
func (t *transport) configOf(q *driver.Queue, durable string) jetstream.ConsumerConfig {
	p := placeOf(q.Topic)
	return jetstream.ConsumerConfig{
		Durable: durable, AckPolicy: jetstream.AckExplicitPolicy, AckWait: t.cfg.Params.Duration("ack-wait"),
		FilterSubjects: []string{p.subject, p.retries(q.Group)},
		MaxDeliver:     -1, MaxAckPending: -1, DeliverPolicy: jetstream.DeliverAllPolicy,
	}
}

// adjust changes a consumer to the configuration, or refuses one that it may not or cannot change and that would lose
// messages or not deliver them.
func (t *transport) adjust(ctx context.Context, stream string, have jetstream.ConsumerConfig,
	want *jetstream.ConsumerConfig,
) error {
	if _, may := reads(&have, want.FilterSubjects...); !may {
		return fmt.Errorf("consumer %s of stream %s reads another topic: %w", have.Durable, stream, brokers.ErrUnroutable)
	}
	if have.AckPolicy != want.AckPolicy || have.DeliverSubject != "" {
		return fmt.Errorf("%w: consumer %s of stream %s is not a pull consumer with explicit acks: delete it, or use "+
			"another group", brokers.ErrUnsupported, have.Durable, stream)
	}
	fixed, declare := have, t.cfg.Params.Bool("declare")
	fixed.FilterSubject, fixed.FilterSubjects = "", want.FilterSubjects
	fixed.MaxDeliver, fixed.BackOff, fixed.HeadersOnly = want.MaxDeliver, nil, false
	fixed.MaxRequestBatch, fixed.MaxRequestExpires, fixed.MaxRequestMaxBytes = 0, 0, 0
	fixed.PriorityPolicy, fixed.PriorityGroups, fixed.PinnedTTL = 0, nil, 0
	if declare { // otherwise these are the operator's
		fixed.AckWait, fixed.MaxAckPending, fixed.InactiveThreshold = want.AckWait, want.MaxAckPending, 0
	}
	switch {
	case reflect.DeepEqual(fixed, have):
		return nil
	case !declare:
		return fmt.Errorf("%w: consumer %s of stream %s would lose messages, and declare=false: set its filter subjects to "+
			"%s, max_deliver to -1, and remove headers_only, backoff, priorities and limits of requests",
			brokers.ErrUnsupported, have.Durable, stream, strings.Join(want.FilterSubjects, " and "))
	}
	if _, err := ask(ctx, func(ctx context.Context) (jetstream.Consumer, error) {
		return t.js.UpdateConsumer(ctx, stream, fixed)
	}); err != nil {
		return fmt.Errorf("change consumer %s: %w", have.Durable, err)
	}
	return nil
}

// createConsumer creates a consumer that starts with the oldest message, or, if an operator has deleted the group's
// consumer, after the last message that the group is known to have acked.
func (t *transport) createConsumer(ctx context.Context, info *jetstream.StreamInfo,
	cfg jetstream.ConsumerConfig,
) error {
	stream := info.Config.Name
	t.mu.Lock()
	acked := t.floors[floorKey(stream, cfg.FilterSubjects[1])]
	t.mu.Unlock()
	if acked.seq > 0 && acked.incarnation == incarnation(info) {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, acked.seq+1
		cfg.Metadata = map[string]string{metaStream: acked.incarnation}
	}
	_, err := ask(ctx, func(ctx context.Context) (jetstream.Consumer, error) {
		return t.js.CreateConsumer(ctx, stream, cfg)
	})
	if err != nil && !errors.Is(err, jetstream.ErrConsumerExists) { // then another process or attempt was faster
		return fmt.Errorf("create consumer %s of stream %s: %w", cfg.Durable, stream, err)
	}
	return nil
}

// metaStream names the incarnation of the stream in which a consumer starts after its group's acks. If the stream was
// recreated just before the consumer was created, and counts from 1, that start skips messages.
const metaStream = "redrive-stream"

// startsIn reports whether the start of a consumer was meant for this incarnation of its stream.
func startsIn(info *jetstream.StreamInfo, c jetstream.Consumer) bool {
	meant, resumes := c.CachedInfo().Config.Metadata[metaStream]
	return !resumes || meant == incarnation(info)
}

// place is where the messages of a topic are stored.
type place struct {
	subject string // of the topic
	token   string // the topic as one token of a subject, and as the name of a stream
}

// prefix is the first token of the subjects that are ours: no producer publishes to them.
const prefix = "redrive"

func placeOf(topic string) place { return place{subject: subjectOf(topic), token: tokenOf(topic)} }

// retries is the subject of a group's retries, which only its consumer reads.
func (p place) retries(group string) string {
	return prefix + "." + p.token + "." + retriesToken(group)
}

func retriesToken(group string) string { return "again." + tokenOf(group) }

// schedule is the subject of one schedule. The server keeps one schedule for each subject.
func (p place) schedule(kind, id string) string {
	return prefix + "." + p.token + ".wait." + kind + "." + id
}

// ownSubjects matches the subjects that we add to the topic's.
func (p place) ownSubjects() string { return prefix + "." + p.token + ".>" }

// maxToken bounds the names of streams and consumers, which are file names too.
const maxToken = 180

// tokenOf converts a name to a token, different for every name. Dots, which separate tokens, become pluses.
func tokenOf(name string) string {
	var b strings.Builder
	for i := range len(name) {
		switch c := name[i]; {
		case c == '.':
			b.WriteByte('+')
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "=%02X", c)
		}
	}
	if b.Len() <= maxToken {
		return b.String()
	}
	sum := sha256.Sum256([]byte(name))
	return b.String()[:maxToken-33] + "=" + hex.EncodeToString(sum[:16]) // elsewhere = is followed by two digits
}

// nameOf is the reverse of tokenOf. It returns a shortened token unchanged.
func nameOf(token string) string {
	name, err := url.PathUnescape(strings.NewReplacer("=", "%", "+", ".").Replace(token))
	if err != nil || len(token) == maxToken {
		return token
	}
	return name
}

// subjectOf returns the topic, with the characters escaped that cannot be in a subject or are wildcards.
func subjectOf(topic string) string {
	var b strings.Builder
	for i := range len(topic) {
		c := topic[i]
		emptyToken := c == '.' && (i == 0 || i == len(topic)-1 || topic[i-1] == '.')
		if c <= ' ' || c == 0x7f || c == '*' || c == '>' || c == '=' || c == '$' && i == 0 || emptyToken {
			fmt.Fprintf(&b, "=%02X", c)
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}
