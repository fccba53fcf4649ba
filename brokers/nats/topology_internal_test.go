package nats

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// A request is repeated while it is not answered, or the answer is that the cluster is not available, for as long as
// the caller waits; an error is returned at once. A stream is created when the files of a deleted one are gone.
func TestAsk(t *testing.T) {
	refused := func(code jetstream.ErrorCode) func(context.Context) error {
		return func(context.Context) error { return &jetstream.APIError{Code: 503, ErrorCode: code} }
	}
	silent := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, c := range map[string]struct {
		fails    func(context.Context) error
		failures int
		deadline time.Duration
		attempts int
		within   time.Duration
		err      error
	}{
		"answered at once":                  {nil, 0, 0, 1, 0, nil},
		"the first attempt is not answered": {silent, 1, 0, 2, 4 * time.Second, nil},
		"nor the second":                    {silent, 2, 0, 3, 10 * time.Second, nil},
		"never":                             {silent, 99, 0, 6, 30 * time.Second, context.DeadlineExceeded},
		"the caller waits for less":         {silent, 99, 5 * time.Second, 2, 5 * time.Second, context.DeadlineExceeded},
		"not available for a while":         {refused(10008), 9, 0, 10, 5 * time.Second, nil},
		"not available":                     {refused(10008), 99, 5 * time.Second, 10, 5 * time.Second, refused(10008)(nil)},
		"the stream's servers restart":      {refused(10118), 9, 0, 10, 5 * time.Second, nil},
		"the consumer's servers restart":    {refused(10119), 99, 5 * time.Second, 10, 5 * time.Second, refused(10119)(nil)},
		"its files are being deleted":       {refused(10049), 3, 0, 4, time.Second, nil},
		"its files cannot be deleted":       {refused(10049), 99, 0, 10, 5 * time.Second, refused(10049)(nil)},
		"the others are not known yet":      {refused(10005), 3, 0, 4, time.Second, nil},
		"another error":                     {refused(10023), 99, 0, 1, 0, refused(10023)(nil)},
		"not found":                         {refused(10014), 99, 0, 1, 0, refused(10014)(nil)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, began, attempts := t.Context(), time.Now(), 0
				if c.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				answer, err := ask(ctx, func(ctx context.Context) (string, error) {
					if attempts++; attempts <= c.failures {
						return "", c.fails(ctx)
					}
					return "answer", nil
				})
				require.ErrorIs(t, err, c.err)
				require.Equal(t, c.err == nil, answer != "")
				require.Equal(t, c.attempts, attempts)
				require.LessOrEqual(t, time.Since(began), c.within)
			})
		})
	}
}

// recreatingServer has a stream that an operator recreates right before a consumer is created in it.
type recreatingServer struct {
	jetstream.JetStream

	stream   jetstream.StreamInfo
	recreate bool
	refusing error // of DeleteConsumer
	consumer *jetstream.ConsumerConfig
	// recreated is the consumer that another process creates after DeleteConsumer, whose answer is lost.
	recreated *jetstream.ConsumerConfig
}

func (s *recreatingServer) StreamNameBySubject(context.Context, string) (string, error) {
	return "orders", nil
}

func (s *recreatingServer) Stream(context.Context, string) (jetstream.Stream, error) {
	info := s.stream
	return foundStream{server: s, info: &info}, nil
}

func (s *recreatingServer) Consumer(context.Context, string, string) (jetstream.Consumer, error) {
	if s.consumer == nil {
		return nil, jetstream.ErrConsumerNotFound
	}
	return foundConsumer{info: &jetstream.ConsumerInfo{Config: *s.consumer}}, nil
}

func (s *recreatingServer) CreateConsumer(
	_ context.Context, _ string, cfg jetstream.ConsumerConfig,
) (jetstream.Consumer, error) {
	if s.consumer != nil {
		return nil, jetstream.ErrConsumerExists
	}
	if s.recreate {
		s.recreate, s.stream.Created = false, s.stream.Created.Add(time.Millisecond)
	}
	s.consumer = &cfg
	return nil, nil
}

func (s *recreatingServer) DeleteConsumer(context.Context, string, string) error {
	if s.refusing != nil {
		return s.refusing
	}
	if s.consumer, s.recreated = s.recreated, nil; s.consumer != nil {
		return context.DeadlineExceeded
	}
	return nil
}

type foundStream struct {
	jetstream.Stream

	server *recreatingServer
	info   *jetstream.StreamInfo
}

func (s foundStream) CachedInfo() *jetstream.StreamInfo { return s.info }

func (s foundStream) Info(context.Context, ...jetstream.StreamInfoOpt) (*jetstream.StreamInfo, error) {
	info := s.server.stream
	return &info, nil
}

func (s foundStream) Consumer(ctx context.Context, name string) (jetstream.Consumer, error) {
	return s.server.Consumer(ctx, "orders", name)
}

type foundConsumer struct {
	jetstream.Consumer

	info *jetstream.ConsumerInfo
}

func (c foundConsumer) CachedInfo() *jetstream.ConsumerInfo { return c.info }

// A consumer that continues after its group's acks must not do so in another stream, whose first messages it would
// skip if the sequence starts over. It is not read, and the next Declare replaces it.
func TestDeclare_SkipsNothingInARecreatedStream(t *testing.T) {
	for name, c := range map[string]struct {
		acked    uint64
		recreate bool
		start    uint64
		wrong    bool
	}{
		"continues after the acks":              {acked: 7, start: 8},
		"the stream is recreated meanwhile":     {acked: 7, recreate: true, start: 8, wrong: true},
		"recreated, but nothing was acked":      {recreate: true},
		"has acked nothing and starts at first": {},
	} {
		t.Run(name, func(t *testing.T) {
			q := driver.Queue{Topic: "orders", Names: brokers.Names{Dead: "orders_dlq"}, Group: "billing"}
			server := &recreatingServer{recreate: c.recreate, stream: jetstream.StreamInfo{Created: time.UnixMilli(1)}}
			server.stream.Config = jetstream.StreamConfig{Name: "orders", AllowMsgSchedules: true, Subjects: []string{
				placeOf(q.Topic).ownSubjects(), placeOf(q.Names.Dead).ownSubjects(),
			}}
			tr := &transport{
				js: server, cfg: brokers.Config{Params: brokers.Params{"declare": "true", "ack-wait": "30s", "max-age": "0s"}},
				floors: map[string]floor{
					"orders\x00" + placeOf(q.Topic).retries(q.Group): {incarnation: incarnation(&server.stream), seq: c.acked},
				},
				counted: map[string]struct{}{},
			}
			require.NoError(t, tr.Declare(t.Context(), q))
			require.Equal(t, c.start, server.consumer.OptStartSeq)
			_, err := tr.Receive(t.Context(), q)
			require.Equal(t, c.wrong, errors.Is(err, brokers.ErrUnroutable), "the engine declares the queue again")
			if !c.wrong {
				return
			}
			server.refusing = errors.New("no quorum")
			require.ErrorIs(t, tr.Declare(t.Context(), q), server.refusing)
			_, err = tr.Receive(t.Context(), q)
			require.ErrorIs(t, err, brokers.ErrUnroutable)
			server.refusing = nil
			other := tr.configOf(&q, server.consumer.Durable)
			server.recreated = &other
			require.NoError(t, tr.Declare(t.Context(), q))
			require.Same(t, &other, server.consumer, "the request is repeated, but not for this one")
			require.Zero(t, server.consumer.OptStartSeq)
			_, err = tr.Receive(t.Context(), q)
			require.NotErrorIs(t, err, brokers.ErrUnroutable)
		})
	}
}

// leaderlessServer carries out the first request of each kind, but its answer is lost with the leader.
type leaderlessServer struct {
	*recreatingServer

	lost map[string]bool
}

func (s leaderlessServer) lose(ctx context.Context, kind string) error {
	if s.lost[kind] {
		return nil
	}
	s.lost[kind] = true
	<-ctx.Done()
	return ctx.Err()
}

func (s leaderlessServer) AccountInfo(ctx context.Context) (*jetstream.AccountInfo, error) {
	return nil, s.lose(ctx, "account")
}

func (s leaderlessServer) StreamNameBySubject(ctx context.Context, _ string) (string, error) {
	if s.stream.Config.Name == "" {
		return "", cmp.Or[error](s.lose(ctx, "name"), jetstream.ErrStreamNotFound)
	}
	return s.stream.Config.Name, s.lose(ctx, "name")
}

func (s leaderlessServer) Stream(ctx context.Context, _ string) (jetstream.Stream, error) {
	return leaderlessStream{foundStream{server: s.recreatingServer, info: &s.stream}, s}, s.lose(ctx, "stream")
}

func (s leaderlessServer) CreateStream(ctx context.Context, cfg jetstream.StreamConfig) (jetstream.Stream, error) {
	s.stream.Config = cfg
	s.stream.Config.Subjects = append(cfg.Subjects, placeOf("orders_dlq").ownSubjects())
	return foundStream{info: &s.stream}, s.lose(ctx, "create stream")
}

func (s leaderlessServer) Consumer(ctx context.Context, stream, name string) (jetstream.Consumer, error) {
	c, err := s.recreatingServer.Consumer(ctx, stream, name)
	return c, cmp.Or(s.lose(ctx, "consumer"), err)
}

func (s leaderlessServer) CreateConsumer(
	ctx context.Context, _ string, cfg jetstream.ConsumerConfig,
) (jetstream.Consumer, error) {
	s.consumer = &cfg
	return nil, s.lose(ctx, "create consumer")
}

func (s leaderlessServer) UpdateConsumer(
	ctx context.Context, _ string, cfg jetstream.ConsumerConfig,
) (jetstream.Consumer, error) {
	s.consumer = &cfg
	return nil, s.lose(ctx, "update consumer")
}

func (s leaderlessServer) DeleteConsumer(ctx context.Context, _, _ string) error {
	if s.consumer == nil {
		return jetstream.ErrConsumerNotFound
	}
	s.consumer = nil
	return s.lose(ctx, "delete consumer")
}

type leaderlessStream struct {
	foundStream

	server leaderlessServer
}

func (s leaderlessStream) Info(ctx context.Context, _ ...jetstream.StreamInfoOpt) (*jetstream.StreamInfo, error) {
	return s.info, s.server.lose(ctx, "info")
}

func (s leaderlessStream) CreateConsumer(
	ctx context.Context, cfg jetstream.ConsumerConfig,
) (jetstream.Consumer, error) {
	return foundConsumer{info: &jetstream.ConsumerInfo{Config: cfg, NumPending: 7}}, s.server.lose(ctx, "count")
}

func (s leaderlessStream) ListConsumers(ctx context.Context) jetstream.ConsumerInfoLister {
	return noConsumers{s.server.lose(ctx, "list")}
}

type noConsumers struct{ err error }

func (l noConsumers) Err() error { return l.err }

func (l noConsumers) Info() <-chan *jetstream.ConsumerInfo {
	none := make(chan *jetstream.ConsumerInfo)
	close(none)
	return none
}

// While a cluster has no leader, requests are never answered, or were carried out without an answer: all are repeated
// long before the caller gives up.
func TestRequests_AreRepeatedWithoutAnAnswer(t *testing.T) {
	q := driver.Queue{Topic: "orders", Names: brokers.Names{Dead: "orders_dlq"}, Group: "billing"}
	to := driver.Destination{Kind: driver.ToConsumer, Topic: q.Topic, Consumer: q.Group}
	declare := func(ctx context.Context, tr *transport) error { return tr.Declare(ctx, q) }
	for name, c := range map[string]struct {
		stream   bool // there is one
		consumer *jetstream.ConsumerConfig
		call     func(context.Context, *transport) error
		lost     int
	}{
		"open":                       {false, nil, func(ctx context.Context, tr *transport) error { return tr.Ping(ctx) }, 1},
		"a new stream":               {false, nil, declare, 5},
		"a new consumer":             {true, nil, declare, 4},
		"a consumer that is changed": {true, &jetstream.ConsumerConfig{MaxDeliver: 3}, declare, 4},
		"a consumer that is replaced": {
			true, &jetstream.ConsumerConfig{Metadata: map[string]string{metaStream: "earlier"}}, declare, 5,
		},
		"receive": {true, &jetstream.ConsumerConfig{}, func(ctx context.Context, tr *transport) error {
			if _, err := tr.Receive(ctx, q); !errors.Is(err, nats.ErrInvalidConnection) { // there is none
				return err
			}
			return nil
		}, 4},
		"readers": {true, &jetstream.ConsumerConfig{}, func(ctx context.Context, tr *transport) error {
			_, err := tr.Readers(ctx, &to)
			return err
		}, 3},
		"depths": {true, nil, func(ctx context.Context, tr *transport) error {
			tr.counts(q.Topic)
			depths, err := tr.Depths(ctx)
			require.Len(t, depths, 2)
			return err
		}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := leaderlessServer{&recreatingServer{}, map[string]bool{}}
				if server.consumer = c.consumer; c.consumer != nil {
					c.consumer.FilterSubjects = []string{placeOf(q.Topic).subject, placeOf(q.Topic).retries(q.Group)}
					c.consumer.AckPolicy = jetstream.AckExplicitPolicy
				}
				if c.stream {
					server.stream.Config = jetstream.StreamConfig{Name: "orders", AllowMsgSchedules: true, Subjects: []string{
						placeOf(q.Topic).ownSubjects(), placeOf(q.Names.Dead).ownSubjects(),
					}}
				}
				tr := &transport{
					js: server, floors: map[string]floor{}, counted: map[string]struct{}{},
					cfg: brokers.Config{Params: brokers.Params{
						"declare": "true", "ack-wait": "30s", "max-age": "0s", "replicas": "3",
					}},
				}
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				require.NoError(t, c.call(ctx, tr))
				require.Len(t, server.lost, c.lost)
			})
		})
	}
}

// unledServer has no leader for the stream at the first publication.
type unledServer struct {
	*recreatingServer

	publications int
}

func (s *unledServer) PublishMsgAsync(m *nats.Msg, _ ...jetstream.PublishOpt) (jetstream.PubAckFuture, error) {
	s.publications++
	f := confirm{message: m, ok: make(chan *jetstream.PubAck, 1), err: make(chan error, 1)}
	if s.publications == 1 {
		f.err <- jetstream.ErrNoStreamResponse
	} else {
		f.ok <- &jetstream.PubAck{}
	}
	return f, nil
}

type confirm struct {
	message *nats.Msg
	ok      chan *jetstream.PubAck
	err     chan error
}

func (c confirm) Ok() <-chan *jetstream.PubAck { return c.ok }
func (c confirm) Err() <-chan error            { return c.err }
func (c confirm) Msg() *nats.Msg               { return c.message }

// A redrive waits for a leader as every publication does, and is not refused as if its destination were missing.
func TestPublish_RedriveWithoutALeader(t *testing.T) {
	server := &unledServer{recreatingServer: &recreatingServer{consumer: &jetstream.ConsumerConfig{}}}
	tr := &transport{js: server, conn: &nats.Conn{}}
	require.Equal(t, []error{nil}, tr.Publish(t.Context(), []driver.Outgoing{{
		Message: message.NewMessage("1", nil), ExistingOnly: true, Origin: &envelope.Origin{},
		To: &driver.Destination{Kind: driver.ToConsumer, Topic: "orders", Consumer: "billing"},
	}}))
	require.Equal(t, 2, server.publications)
}
