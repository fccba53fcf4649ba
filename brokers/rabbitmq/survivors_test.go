package rabbitmq

import (
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

func TestSurvivors_RememberWhatWasUnderWay(t *testing.T) {
	s := newSurvivors(10)
	slow, quick := message.NewMessage("slow", nil), message.NewMessage("quick", nil)
	for range 3 { // three sessions are lost while one handler runs
		u := underWay{keys: map[uint64]messageKey{}}
		u.begin(1, keyOf(slow))
		u.begin(2, keyOf(quick))
		u.end(2)
		u.survive(s)
		u.end(1) // the handler is done, too late for its session
	}
	require.Equal(t, 3, s.count(keyOf(slow)))
	require.Zero(t, s.count(keyOf(quick)))
}

func TestSurvivors_ForgetTheOldest(t *testing.T) {
	s := newSurvivors(10)
	for i := range 100 {
		s.add(messageKey{id: strconv.Itoa(i)})
	}
	require.Len(t, s.times, 10)
	require.Len(t, s.order, 10)
	require.Zero(t, s.count(messageKey{id: "89"}))
	require.Equal(t, 1, s.count(messageKey{id: "90"}))
}

func TestSurvivors_TellMessagesWithoutAnIDApart(t *testing.T) {
	a, b := message.NewMessage("", []byte("a")), message.NewMessage("", []byte("b"))
	require.NotEqual(t, keyOf(a), keyOf(b))
	require.Equal(t, keyOf(a), keyOf(message.NewMessage("", []byte("a"))))
}
