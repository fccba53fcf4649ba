package nats

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
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
	consumer *jetstream.ConsumerConfig
}

func (s *recreatingServer) Stream(context.Context, string) (jetstream.Stream, error) {
	return foundStream{info: &s.stream}, nil
}

func (s *recreatingServer) CreateConsumer(
	_ context.Context, _ string, cfg jetstream.ConsumerConfig,
) (jetstream.Consumer, error) {
	if s.recreate {
		s.stream.Created = s.stream.Created.Add(time.Millisecond)
	}
	s.consumer = &cfg
	return nil, nil
}

func (s *recreatingServer) DeleteConsumer(context.Context, string, string) error {
	s.consumer = nil
	return nil
}

type foundStream struct {
	jetstream.Stream

	info *jetstream.StreamInfo
}

func (s foundStream) CachedInfo() *jetstream.StreamInfo { return s.info }

// A consumer that continues after its group's acks must not do so in another stream, whose first messages it would
// skip if the sequence starts over.
func TestCreateConsumer_SkipsNothingInARecreatedStream(t *testing.T) {
	for name, c := range map[string]struct {
		acked    uint64
		recreate bool
		start    uint64
		fails    bool
	}{
		"continues after the acks":              {acked: 7, start: 8},
		"the stream is recreated meanwhile":     {acked: 7, recreate: true, fails: true},
		"recreated, but nothing was acked":      {recreate: true},
		"has acked nothing and starts at first": {},
	} {
		t.Run(name, func(t *testing.T) {
			server := &recreatingServer{recreate: c.recreate, stream: jetstream.StreamInfo{
				Config: jetstream.StreamConfig{Name: "orders"}, Created: time.UnixMilli(1),
			}}
			info := server.stream
			tr := &transport{js: server, floors: map[string]floor{
				"orders\x00billing": {incarnation: incarnation(&info), seq: c.acked},
			}}
			err := tr.createConsumer(t.Context(), &info, jetstream.ConsumerConfig{Durable: "billing"})
			if c.fails {
				require.ErrorIs(t, err, brokers.ErrUnroutable, "the engine declares the queue again")
				require.Nil(t, server.consumer)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.start, server.consumer.OptStartSeq)
		})
	}
}
