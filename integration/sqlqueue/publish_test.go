package sqlqueue_test

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

// Messages published in the caller's transaction are written by a different statement than others, because drivers
// differ. Both preserve every byte and the order, with batches of any size.
func TestPublish_SameInsideAndOutsideATransaction(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		db := openDB(t, url)
		queue := openQueue(t, url)
		messages, err := queue.Subscriber().Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		var list []*message.Message
		for _, text := range []string{"", "NULL", "{}", `{"a","b"}`, `a\"b\\`, "'; --", "\x00\xff\x01", "ünï\u2028", "$1 ?"} {
			m := message.NewMessage(text, []byte(text))
			m.Metadata.Set("key "+text, text)
			list = append(list, m)
		}
		list = append(list, message.NewMessage("nil payload", nil))
		list = append(list, batch(1200)...)

		require.NoError(t, queue.Publisher().Publish("orders", list...))
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		err = queue.TxPublisher(tx).Publish("orders", list...)
		if err == nil {
			err = tx.Commit()
		} else {
			err = errors.Join(err, tx.Rollback())
		}
		require.NoError(t, err)
		for range 2 {
			for _, want := range list {
				got := receive(t, messages)
				require.Equal(t, want.UUID, got.UUID)
				require.Equal(t, string(want.Payload), string(got.Payload))
				require.Equal(t, want.Metadata, got.Metadata)
				got.Ack()
			}
		}
	})
}
