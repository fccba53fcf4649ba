package mirror_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq/internal/mirror"
	"github.com/redrive-go/redrive/dlq/wire"
)

type (
	place struct{ Topic string }
	state string
	share struct{ Part int64 }
	part  struct{ Part int64 }

	letter struct {
		ID      int64
		State   state
		Origin  place
		Wait    time.Duration
		At      time.Time
		Parts   []share
		States  []state
		Shares  share
		ByHand  int
		private int
	}
	form struct {
		ID          int64     `json:"id"`
		State       wire.Text `json:"state"`
		Topic       string    `json:"topic"`
		WaitSeconds float64   `json:"wait_seconds"`
		At          time.Time `json:"at"`
		Parts       []part    `json:"parts" nullable:"false"`
		States      []string  `json:"states,omitempty" nullable:"false"`
		Shares      part      `json:"shares"`
	}
)

func TestMirror_BothWays(t *testing.T) {
	t.Parallel()
	m := mirror.New[letter, form](map[string]string{"Topic": "Origin.Topic", "ByHand": ""})
	v := letter{
		ID: 7, State: "bad \xff", Origin: place{"orders"}, Wait: 90 * time.Second, At: time.Unix(17, 0).UTC(),
		Parts: []share{{1}, {2}}, States: []state{"a"}, Shares: share{3}, ByHand: 4, private: 5,
	}
	w := m.To(&v)
	require.Equal(t, form{
		ID: 7, State: "bad \xff", Topic: "orders", WaitSeconds: 90, At: v.At, Parts: []part{{1}, {2}},
		States: []string{"a"}, Shares: part{3},
	}, w)
	v.ByHand, v.private = 0, 0
	require.Equal(t, v, m.From(&w))

	none := m.To(&letter{})
	text, err := json.Marshal(none)
	require.NoError(t, err)
	require.Contains(t, string(text), `"parts":[]`, "a list that is always there is never null")
	require.NotContains(t, string(text), "states")
	require.Equal(t, []share{}, m.From(&none).Parts)
	require.Nil(t, m.From(&none).States)
}

// A field that only one side has would be lost on the way there or back: such a program does not start.
func TestMirror_EveryFieldHasAPartner(t *testing.T) {
	t.Parallel()
	for name, others := range map[string]map[string]string{
		"of the JSON form":       {"ByHand": ""},
		"of the type":            {"Topic": "Origin.Topic"},
		"a path to nothing":      {"Topic": "Origin.Place", "ByHand": ""},
		"a path to another type": {"Topic": "Origin.Topic", "ByHand": "", "ID": "State"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Panics(t, func() { mirror.New[letter, form](others) })
		})
	}
}
