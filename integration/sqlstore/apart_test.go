package sqlstore_test

import (
	"fmt"
	neturl "net/url"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/services"
)

// A PostgreSQL database whose character set lacks a character of any text still stores the dead letter, alone and among
// others.
func TestPut_CharacterSetLacksIt(t *testing.T) {
	t.Parallel()
	url := services.SharedPostgres(t).Database(t)
	admin := openDB(t, url)
	var name string
	require.NoError(t, admin.QueryRowContext(t.Context(), "SELECT current_database()").Scan(&name))
	latin := name + "_latin1"
	_, err := admin.ExecContext(t.Context(),
		"CREATE DATABASE "+latin+" ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
	require.NoError(t, err)
	u, err := neturl.Parse(url)
	require.NoError(t, err)
	u.Path = "/" + latin
	var encoding string
	require.NoError(t, openDB(t, u.String()).QueryRowContext(t.Context(), "SHOW server_encoding").Scan(&encoding))
	require.Equal(t, "LATIN1", encoding)
	s := openStore(t, with(u.String(), "client_encoding=UTF8"))
	defer s.Close()
	letters := make([]*dlq.Entry, 5)
	for i := range letters {
		m := message.NewMessage(string(rune('a'+i)), []byte("\xff \u20ac"))
		m.Metadata = message.Metadata{"tenant": "\u20ac 5"}
		letters[i] = dlq.NewEntry(&envelope.DeadLetter{
			Message: m, Err: envelope.Error{Message: "costs \u20ac 5", Trace: "main.go:\u4e16"}, At: time.Now(),
			Origin: envelope.Origin{Broker: "mem", Topic: "orders", Consumer: "billing"},
		})
		letters[i].Body.ContentType = "text/\u20ac"
		for _, text := range letters[i].Names() {
			*text = fmt.Sprintf("\u20ac %d", i)
		}
	}
	receipts, err := s.Put(t.Context(), letters[0])
	require.NoError(t, err)
	more, err := s.Put(t.Context(), letters[1:]...)
	require.NoError(t, err)
	for i, receipt := range append(receipts, more...) {
		got, err := s.Get(t.Context(), receipt.ID)
		require.NoError(t, err)
		require.Equal(t, letters[i].Body.Payload, got.Body.Payload)
		require.Equal(t, "\u20ac 5", got.Body.Headers["tenant"])
		require.Contains(t, got.ErrorMessage, `costs \u20ac 5`)
	}
}
