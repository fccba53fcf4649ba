package sqlqueue_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

// A SQLite file that may not grow behaves as on a full disk: Publish fails, confirmed messages are delivered, and a
// retry without room is refused while its message stays in the queue. Once the file may grow, every message is handled.
func TestFullDisk_LosesNothing(t *testing.T) {
	t.Parallel()
	path := "sqlite://" + filepath.Join(t.TempDir(), "queue.db") + "?x-poll=5ms&x-nack-pause=5ms"
	payload := make([]byte, 50_000)
	full := openURL(t, path+"&_pragma=max_page_count(300)")
	messages := subscribe(t, full, "jobs")
	confirmed := map[string]bool{}
	for n, refused := 0, 0; refused < 3; n++ {
		require.Less(t, n*len(payload), 10<<20, "the disk is full")
		m := message.NewMessage(fmt.Sprint("job-", n), payload)
		if err := full.Publisher().Publish("jobs", m); err != nil {
			require.ErrorContains(t, err, "full")
			refused++
		} else {
			confirmed[m.UUID] = true
		}
	}
	require.Greater(t, len(confirmed), 10)
	grown := message.NewMessage("", make([]byte, 1<<20))
	for n := range len(confirmed) {
		m := receive(t, messages)
		require.True(t, confirmed[m.UUID])
		switch n % 3 {
		case 0:
			m.Ack()
			delete(confirmed, m.UUID)
		case 1:
			m.Nack()
		case 2:
			retry := grown.Copy()
			retry.UUID = m.UUID
			require.ErrorContains(t, full.Reschedule(t.Context(), origin(t, m), retry, 0), "full")
			m.Nack()
		}
		if n == 5 {
			break
		}
	}
	require.NoError(t, full.Close())

	roomy := openURL(t, path)
	messages = subscribe(t, roomy, "jobs")
	for len(confirmed) > 0 {
		m := receive(t, messages)
		require.True(t, confirmed[m.UUID], m.UUID)
		require.Len(t, m.Payload, len(payload))
		delete(confirmed, m.UUID)
		m.Ack()
	}
}

// A message published to a SQLite file that was moved would be lost with the process, so publishing fails until the
// file is restored, and then the same subscription continues.
func TestFileMoved_LosesNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "queue.db")
	b := openURL(t, "sqlite://"+path+"?x-poll=5ms")
	messages := subscribe(t, b, "jobs")
	require.NoError(t, b.Publisher().Publish("jobs", message.NewMessage("before", nil)))
	receive(t, messages).Ack()
	require.NoError(t, os.Rename(path, path+".old"))
	require.ErrorContains(t, b.Publisher().Publish("jobs", message.NewMessage("lost", nil)), "deleted, moved or replaced")
	require.NoError(t, os.Rename(path+".old", path))
	require.NoError(t, b.Publisher().Publish("jobs", message.NewMessage("after", nil)))
	m := receive(t, messages)
	require.Equal(t, "after", m.UUID)
	m.Ack()
}
