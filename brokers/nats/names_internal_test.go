package nats

import (
	"bufio"
	"bytes"
	"maps"
	"net/http"
	"net/textproto"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redrive-go/redrive/brokers/driver"
)

func TestNames_AreReadable(t *testing.T) {
	p := placeOf("orders.paid")
	require.Equal(t, "orders.paid", p.subject)
	require.Equal(t, "orders+paid", p.token)
	require.Equal(t, "redrive.orders+paid.again.billing", p.retries("billing"))
	require.Equal(t, "redrive.orders+paid.wait.first.1", p.schedule("first", "1"))
	require.Equal(t, "redrive.orders+paid.wait.again.billing.1", p.schedule(retriesToken("billing"), "1"))
	require.Equal(t, "redrive.orders+paid.>", p.ownSubjects())
}

// Two topics never share a stream or a subject, and every topic has valid names.
func TestNames_AreOfOneTopic(t *testing.T) {
	text := rapid.OneOf(rapid.String(), rapid.StringOfN(rapid.RuneFrom([]rune(`ab.+=*>$ 2E-_/`)), 1, 12, -1))
	rapid.Check(t, func(t *rapid.T) {
		a, b := text.Draw(t, "a"), text.Draw(t, "b")
		if a == b {
			return
		}
		require.NotEqual(t, tokenOf(a), tokenOf(b))
		if len(tokenOf(a)) < maxToken {
			require.Equal(t, a, nameOf(tokenOf(a)))
		}
		require.NotEqual(t, subjectOf(a), subjectOf(b))
		require.False(t, strings.ContainsAny(tokenOf(a), ".*> /\\"))
		for token := range strings.SplitSeq(subjectOf("a"+a), ".") {
			require.NotEmpty(t, token)
			require.False(t, strings.ContainsAny(token, "*> \t\r\n"))
		}
	})
}

func TestNames_OfAnyLengthFitIntoAFileName(t *testing.T) {
	a, b := strings.Repeat("é", 300)+"a", strings.Repeat("é", 300)+"b"
	require.NotEqual(t, tokenOf(a), tokenOf(b))
	require.LessOrEqual(t, len(tokenOf(a)), maxToken)
}

// Headers of any bytes are preserved by the client's wire format.
func TestHeaders_OfAnyBytesSurvive(t *testing.T) {
	text := rapid.OneOf(
		rapid.String(), rapid.SampledFrom([]string{
			"", " x", "x ", "a\r\nb", "nats-Rollup", "Nats-Schedule", "Status", "x-retry-count", "ä", "a b", "\xff\x00",
			uuidHeader, oddHeader,
		}), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
	)
	rapid.Check(t, func(t *rapid.T) {
		m := message.NewMessage(text.Draw(t, "id"), []byte("body"))
		for range rapid.IntRange(0, 5).Draw(t, "n") {
			if key := text.Draw(t, "key"); key != uuidHeader {
				m.Metadata[key] = text.Draw(t, "value")
			}
		}
		got := parse(overTheWire(t, render(&driver.Outgoing{Message: m, To: &driver.Destination{}})))
		require.Equal(t, m.UUID, got.UUID)
		want := message.Metadata{}
		maps.Insert(want, (&driver.Outgoing{Message: m}).Headers()) // except IDs that a broker assigned
		require.Equal(t, want, got.Metadata)
	})
}

// overTheWire encodes and decodes headers as nats.go does.
func overTheWire(t require.TestingT, m *nats.Msg) *nats.Msg {
	var b bytes.Buffer
	require.NoError(t, http.Header(m.Header).Write(&b))
	out := &nats.Msg{Data: m.Data, Header: nats.Header{}}
	for r := textproto.NewReader(bufio.NewReader(&b)); ; {
		line, err := r.ReadLine()
		if err != nil {
			return out
		}
		key, value, _ := strings.Cut(line, ":")
		out.Header[key] = append(out.Header[key], strings.TrimLeft(value, " \t"))
	}
}

// A foreign producer's message keeps its id.
func TestHeaders_OfAForeignMessage(t *testing.T) {
	m := parse(&nats.Msg{Data: []byte("1"), Header: nats.Header{
		idHeader: {"order-1"}, "X": {"y", "z"}, schedulerNext: {"purge"}, schedulerFrom: {"redrive.orders.wait.first.1"},
	}})
	require.Equal(t, "order-1", m.UUID)
	require.Equal(t, message.Metadata{idHeader: "order-1", "X": "y"}, m.Metadata)

	released := parse(&nats.Msg{Header: nats.Header{idHeader: {releaseID + "$JS.ACK.x"}, uuidHeader: {"order-1"}}})
	require.Equal(t, "order-1", released.UUID)
	require.Empty(t, released.Metadata, "the id of a suspect's copy is not the message's")

	plain := parse(&nats.Msg{Header: nats.Header{oddHeader: {"%zz"}}})
	require.Empty(t, plain.UUID)
	require.Equal(t, "%zz", plain.Metadata[oddHeader])
}
