package envelope_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
)

// The publisher consumes the request; the original delay is written once and stays.
func TestDelay_ConsumedOnceOriginalKept(t *testing.T) {
	m := message.NewMessage("u", nil)
	envelope.SetDelay(m, 10*time.Second)
	require.Equal(t, message.Metadata{envelope.KeyDelay: "10000", envelope.KeyOriginalDelay: "10000"}, m.Metadata)

	d, asked := envelope.TakeDelay(m)
	require.True(t, asked)
	require.Equal(t, 10*time.Second, d)
	require.Equal(t, message.Metadata{envelope.KeyOriginalDelay: "10000"}, m.Metadata)

	_, asked = envelope.TakeDelay(m)
	require.False(t, asked)

	envelope.SetDelay(m, 40*time.Second)
	require.Equal(t, "10000", m.Metadata[envelope.KeyOriginalDelay], "no later delay changes it")
}

func TestDelay_Clamped(t *testing.T) {
	for ask, want := range map[time.Duration]time.Duration{
		-time.Second: 0, 0: 0, 1999 * time.Microsecond: time.Millisecond, 1<<63 - 1: envelope.MaxDelay, -1 << 63: 0,
	} {
		var m message.Message // made without NewMessage: no metadata
		envelope.SetDelay(&m, ask)
		d, asked := envelope.TakeDelay(&m)
		require.True(t, asked)
		require.Equal(t, want, d)
	}
}

// Watermill's own delay keys are honoured, as its components/delay writes them.
func TestDelay_Watermill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := message.NewMessage("u", nil)
		delay.Message(m, delay.For(1500*time.Millisecond))
		c, err := envelope.ReadControl(m)
		require.NoError(t, err)
		require.Equal(t, 1500*time.Millisecond, c.OriginalDelay, "also before it is published")
		d, asked := envelope.TakeDelay(m)
		require.True(t, asked)
		require.Equal(t, 1500*time.Millisecond, d)
		require.Equal(t, message.Metadata{envelope.KeyOriginalDelay: "1500"}, m.Metadata)

		m = message.NewMessage("u", nil)
		m.Metadata[envelope.KeyWatermillDelayedUntil] = time.Now().Add(time.Minute).Format(time.RFC3339)
		d, asked = envelope.TakeDelay(m)
		require.True(t, asked)
		require.Equal(t, time.Minute, d)
	})
}

func TestDelay_UnreadableRequestIsDropped(t *testing.T) {
	for _, md := range []message.Metadata{
		{},
		nil,
		{envelope.KeyDelay: "soon"},
		{envelope.KeyDelay: "-5"},
		{envelope.KeyWatermillDelayedFor: "x", envelope.KeyWatermillDelayedUntil: "y"},
	} {
		m := withHeaders(md)
		d, asked := envelope.TakeDelay(m)
		require.False(t, asked)
		require.Zero(t, d)
		require.Empty(t, m.Metadata)
	}
}
