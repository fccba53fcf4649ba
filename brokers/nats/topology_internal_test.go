package nats

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
)

// clearingServer is still deleting the files of a deleted stream, for that many calls.
type clearingServer struct {
	jetstream.JetStream

	calls int
	code  jetstream.ErrorCode
}

func (s *clearingServer) CreateStream(context.Context, jetstream.StreamConfig) (jetstream.Stream, error) {
	if s.calls--; s.calls >= 0 {
		return nil, &jetstream.APIError{Code: 500, ErrorCode: s.code, Description: "error creating store for stream"}
	}
	return nil, nil
}

func TestCreateStream_WaitsForTheFilesOfADeletedOne(t *testing.T) {
	for name, c := range map[string]struct {
		server clearingServer
		left   int
		fails  bool
	}{
		"soon":          {clearingServer{calls: 3, code: 10049}, -1, false},
		"never":         {clearingServer{calls: 100, code: 10049}, 92, true},
		"another error": {clearingServer{calls: 100, code: 10023}, 99, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, err := (&transport{js: &c.server}).tryCreateStream(t.Context(), jetstream.StreamConfig{})
				require.Equal(t, c.fails, err != nil, err)
				require.Equal(t, c.left, c.server.calls)
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
	if s.recreate {
		s.recreate, s.stream.Created = false, s.stream.Created.Add(time.Millisecond)
	}
	s.consumer = &cfg
	return nil, nil
}

func (s *recreatingServer) DeleteConsumer(context.Context, string, string) error {
	if s.refusing == nil {
		s.consumer = nil
	}
	return s.refusing
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
			require.NoError(t, tr.Declare(t.Context(), q))
			require.Zero(t, server.consumer.OptStartSeq)
			_, err = tr.Receive(t.Context(), q)
			require.NotErrorIs(t, err, brokers.ErrUnroutable)
		})
	}
}
