package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/config"
)

// A dead letter that a spool stores late may have died before those already shown: tail shows it when it comes, and
// each letter once.
func TestTail_FollowsNewEntries(t *testing.T) {
	letters, err := dlq.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "dead.db")+"?synchronous=normal",
		dlq.WithoutSpool())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, letters.Close()) })
	now := time.Now()
	die := func(id string, ago time.Duration) {
		m := message.NewMessage(id, []byte("{}"))
		m.Metadata[envelope.KeyMessageID] = id
		require.NoError(t, letters.DeadLetter(t.Context(), &envelope.DeadLetter{
			Message: m, Reason: envelope.ReasonExhausted, Err: envelope.Error{Message: id + " failed"}, Handler: "charge",
			Origin: envelope.Origin{Broker: "mem", Topic: "orders", Consumer: "billing"}, Attempts: 1, At: now.Add(-ago),
		}))
	}
	var out bytes.Buffer
	a := &app{out: &out, err: &out, cfg: &config.Config{}}
	a.flags.output = "table"
	manager, err := a.local(letters, nil)
	require.NoError(t, err)
	follower := &tail{app: a, manager: manager, seen: map[int64]bool{}}
	shown := func() (ids []string) {
		for line := range strings.Lines(out.String()) {
			fields := strings.Fields(line)
			ids = append(ids, fields[len(fields)-2])
		}
		out.Reset()
		return ids
	}
	die("old", time.Hour)
	die("first", 0)
	require.NoError(t, follower.begin(t.Context(), 1))
	require.Equal(t, []string{"first"}, shown())
	require.NoError(t, follower.look(t.Context()))
	require.Empty(t, shown())
	die("late", time.Minute)
	die("second", 0)
	require.NoError(t, follower.look(t.Context()))
	require.Equal(t, []string{"late", "second"}, shown())
	require.NoError(t, follower.look(t.Context()))
	require.Empty(t, shown())
}
