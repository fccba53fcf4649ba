package nats

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// clearingServer is still removing the files of a deleted stream, for that many calls.
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

func TestMakeStream_WaitsForTheFilesOfADeletedOne(t *testing.T) {
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
				_, err := (&transport{js: &c.server}).makeStream(t.Context(), jetstream.StreamConfig{})
				require.Equal(t, c.fails, err != nil, err)
				require.Equal(t, c.left, c.server.calls)
			})
		})
	}
}
