package sql_test

import (
	stdsql "database/sql"
	"strings"
	"testing"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/watermill/sql"
)

func TestOpen_NamesFaults(t *testing.T) {
	for url, want := range map[string]string{
		"watermill+sqlite://app.db":                             "watermill-sql v3 has no adapter for SQLite",
		"watermill+postgres://localhost/":                       "the URL names no database",
		"watermill+postgres://u:pw-secret@127.0.0.1:1/db":       "watermill+postgres://u:xxxxx@127.0.0.1:1/db",
		"watermill+mysql://localhost/db?x-driver=none":          "forgotten import?",
		"watermill+postgres://localhost/db?x-ack-deadline=0s":   "must be at least 1s",
		"watermill+postgres://localhost/db?x-max-connections=1": "must be at least 2",
	} {
		_, err := brokers.Open(t.Context(), url)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "pw-secret")
	}
}

// A pool of one connection is refused at start, because the handler's own query would wait for the subscription's
// transaction forever.
func TestNew_RefusesAPoolOfOne(t *testing.T) {
	db, err := stdsql.Open("pgx", "postgres://127.0.0.1:1/db")
	require.NoError(t, err)
	defer db.Close()
	db.SetMaxOpenConns(1)
	_, err = sql.New(t.Context(), sql.Config{Broker: brokers.Config{URL: "watermill+postgres://"}, DB: db})
	require.ErrorContains(t, err, "SetMaxOpenConns")
	_, err = sql.New(t.Context(), sql.Config{
		Broker: brokers.Config{URL: "watermill+postgres://"}, DB: db, Schema: wsql.DefaultPostgreSQLSchema{},
	})
	require.ErrorContains(t, err, "configure both Schema and Offsets")
}

// row is a scanner over columns.
type row []any

func (r row) Scan(dest ...any) error {
	for i := range dest {
		switch d := dest[i].(type) {
		case *int64:
			*d = r[i].(int64)
		case *[]byte:
			*d, _ = r[i].([]byte)
		}
	}
	return nil
}

// Our schema reads stored messages unchanged, whatever bytes their metadata has, and watermill-sql's own schema reads
// them unchanged except for such bytes.
func TestSchema_KeepsMetadata(t *testing.T) {
	m := message.NewMessage("1", []byte("\x00{not json"))
	m.Metadata = message.Metadata{"text": "é", "latin": "caf\xe9", "nul": "a\x00b", "na\xffme": "v"}
	before := m.Copy()
	q, err := sql.MySQLSchema{}.InsertQuery("orders", message.Messages{m})
	require.NoError(t, err)
	require.Equal(t, before.Metadata, m.Metadata, "the caller's message is unchanged")
	stored := row{int64(1), []byte(q.Args[0].(string)), q.Args[1], q.Args[2]}
	got, err := sql.MySQLSchema{}.UnmarshalMessage(stored)
	require.NoError(t, err)
	require.True(t, m.Equals(got.Msg), "%v", got.Msg.Metadata)
	theirs, err := wsql.DefaultMySQLSchema{}.UnmarshalMessage(stored)
	require.NoError(t, err)
	require.Equal(t, "é", theirs.Msg.Metadata["text"])

	// A foreign row must not block the topic.
	for _, metadata := range [][]byte{nil, []byte("null"), []byte("[1]"), []byte(`{"n":1}`), []byte("{")} {
		r, err := sql.PostgresSchema{}.UnmarshalMessage(row{int64(1), int64(2), []byte("x"), []byte("p"), metadata})
		require.NoError(t, err)
		require.Equal(t, "p", string(r.Msg.Payload))
	}
}

// PostgreSQL truncates names at 63 bytes: two topics would share a table.
func TestSchema_LongTopicsHaveSeparateTables(t *testing.T) {
	short, long := strings.Repeat("a", 45), strings.Repeat("a", 80)
	schema, offsets := sql.Adapters(t)
	require.Equal(t, `"watermill_`+short+`"`, schema.MessagesTable(short), "as in watermill-sql")
	require.Equal(t, `"watermill_offsets_`+short+`"`, offsets.MessagesOffsetsTable(short))
	seen := map[string]bool{}
	for _, topic := range []string{long + "1", long + "2"} {
		for _, name := range []string{schema.MessagesTable(topic), offsets.MessagesOffsetsTable(topic)} {
			require.LessOrEqual(t, len(name), 63+2)
			require.False(t, seen[name])
			seen[name] = true
		}
	}
}
