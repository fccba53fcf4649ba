package sqlqueue_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// die makes every leased row belong to a worker that has died.
const die = `UPDATE redrive_queue_messages SET lease = 42 WHERE lease IS NOT NULL AND lease <> 0`

// A nack settles the message, so earlier crashes no longer count. Only consecutive crashes count, and after crash-limit
// of them the message is dead-lettered.
func TestCrashLimit_ANackStartsOver(t *testing.T) {
	inVirtualTime(t, func(w world) {
		b := w.process("x-crash-limit=3&x-poll=3s")
		messages := subscribe(w.T, b, "orders")
		letters := subscribe(w.T, b, brokers.NameScheme{}.For("orders", brokers.DefaultGroup).Dead)
		publish(w.T, b, "orders", "m")
		m := now(w.T, messages)
		crash := func() {
			w.exec(die)
			m.Nack() // by a worker that has lost the lease: it has no effect
			w.sleep(31 * time.Second)
		}
		for range 2 {
			crash()
			m = now(w.T, messages)
		}
		m.Nack()
		w.sleep(10 * time.Second)
		m = now(w.T, messages)
		for range 2 {
			crash()
			m = now(w.T, messages)
		}
		none(w.T, letters)
		crash()
		none(w.T, messages)
		letter := now(w.T, letters)
		require.Equal(w, string(envelope.ReasonCrash), letter.Metadata.Get(envelope.KeyDeadLetterReason))
		letter.Ack()
		require.Zero(w, w.count("SELECT count(*) FROM redrive_queue_messages"))
	})
}

// The first expired lease counts for every row of the worker; later ones count only for rows whose handlers had
// started, which is recorded before they start.
func TestCrashLimit_CountsHandlersThatHadBegun(t *testing.T) {
	inVirtualTime(t, func(w world) {
		b := w.process("")
		publish(w.T, b, "orders", "first time", "not begun", "begun", "given back")
		w.exec("UPDATE redrive_queue_messages SET visible_at = 0, deliveries = 1, lease = 42")
		w.exec("UPDATE redrive_queue_messages SET crashes = 1 WHERE uuid IN ('not begun', 'begun')")
		w.exec("UPDATE redrive_queue_messages SET started = 1 WHERE uuid = 'begun'")
		w.exec("UPDATE redrive_queue_messages SET lease = 0 WHERE uuid = 'given back'")
		messages := subscribe(w.T, b, "orders", brokers.WithConcurrency(4))
		for range 4 {
			now(w.T, messages)
		}
		for uuid, want := range map[string]struct{ crashes, started int }{
			"first time": {1, 1}, "not begun": {1, 1}, "begun": {2, 1}, "given back": {0, 0},
		} {
			require.Equal(w, want.crashes, w.count("SELECT crashes FROM redrive_queue_messages WHERE uuid = '"+uuid+"'"), uuid)
			require.Equal(w, want.started, w.count("SELECT started FROM redrive_queue_messages WHERE uuid = '"+uuid+"'"), uuid)
		}
	})
}

// Messages that were in flight in two crashes are handled one at a time, and the others alongside them.
func TestCrashLimit_SuspectsRunAlone(t *testing.T) {
	inVirtualTime(t, func(w world) {
		b := w.process("")
		publish(w.T, b, "orders", "suspect 1", "suspect 2", "suspect 3", "other 1", "other 2")
		w.exec("UPDATE redrive_queue_messages SET visible_at = 0, lease = 42, crashes = 1, started = 1 WHERE uuid LIKE " +
			"'suspect%'")
		messages := subscribe(w.T, b, "orders", brokers.WithConcurrency(5))
		var (
			first   []string
			suspect *message.Message
		)
		for range 3 {
			m := now(w.T, messages)
			first = append(first, m.UUID)
			if strings.HasPrefix(m.UUID, "suspect") {
				suspect = m
			}
		}
		require.Subset(w, first, []string{"other 1", "other 2"})
		none(w.T, messages)
		require.NotNil(w, suspect, "no suspect runs alongside the others")
		suspect.Ack()
		now(w.T, messages).Nack()
		now(w.T, messages).Ack()
	})
}
