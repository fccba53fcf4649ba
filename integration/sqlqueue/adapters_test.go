package sqlqueue_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
)

// skipLocked is the predecessor of this queue: watermill-sql's publisher and subscriber on a table with due times,
// claimed with SKIP LOCKED, using only adapters. Benchmarks compare it with its replacement.
//
// A batch is one row. The subscriber acks a batch by naming its last row, and the earlier ones need not be adjacent. A
// DELETE of each row in ConsumedMessageQuery instead would lose messages: the subscriber commits a batch in which a
// handler missed AckDeadline.
type skipLocked struct{}

var (
	_ wsql.SchemaAdapter  = skipLocked{}
	_ wsql.OffsetsAdapter = skipLocked{}
)

func (skipLocked) SchemaInitializingQueries(string) []wsql.Query {
	return []wsql.Query{
		{Query: `CREATE TABLE IF NOT EXISTS adapted (id bigserial PRIMARY KEY, topic text NOT NULL,
		due_at timestamptz NOT NULL DEFAULT now(), uuid text NOT NULL, metadata jsonb, payload bytea)`},
		{Query: `CREATE INDEX IF NOT EXISTS adapted_due ON adapted (topic, due_at, id)`},
	}
}

func (skipLocked) InsertQuery(topic string, list message.Messages) (wsql.Query, error) {
	args := []any{topic}
	var query strings.Builder
	query.WriteString("INSERT INTO adapted (topic, uuid, metadata, payload) VALUES ")
	for i, m := range list {
		metadata, err := json.Marshal(m.Metadata)
		if err != nil {
			return wsql.Query{}, err
		}
		if i > 0 {
			query.WriteByte(',')
		}
		fmt.Fprintf(&query, "($1,$%d,$%d,$%d)", 3*i+2, 3*i+3, 3*i+4)
		args = append(args, m.UUID, metadata, []byte(m.Payload))
	}
	return wsql.Query{Query: query.String(), Args: args}, nil
}

func (skipLocked) SelectQuery(topic, _ string, _ wsql.OffsetsAdapter) wsql.Query {
	return wsql.Query{Query: `SELECT id, uuid, metadata, payload FROM adapted WHERE topic = $1 AND due_at <= now()
		ORDER BY due_at, id LIMIT 1 FOR UPDATE SKIP LOCKED`, Args: []any{topic}}
}

func (skipLocked) UnmarshalMessage(row wsql.Scanner) (wsql.Row, error) {
	var r wsql.Row
	if err := row.Scan(&r.Offset, &r.UUID, &r.Metadata, &r.Payload); err != nil {
		return wsql.Row{}, err
	}
	r.Msg = message.NewMessage(string(r.UUID), r.Payload)
	return r, json.Unmarshal(r.Metadata, &r.Msg.Metadata)
}

func (skipLocked) SubscribeIsolationLevel() sql.IsolationLevel { return sql.LevelReadCommitted }

func (skipLocked) ConsumedMessageQuery(string, wsql.Row, string, []byte) wsql.Query {
	return wsql.Query{}
}

func (skipLocked) AckMessageQuery(_ string, row wsql.Row, _ string) wsql.Query {
	return wsql.Query{Query: "DELETE FROM adapted WHERE id = $1", Args: []any{row.Offset}}
}

func (skipLocked) NextOffsetQuery(string, string) wsql.Query { return wsql.Query{} }

func (skipLocked) BeforeSubscribingQueries(string, string) []wsql.Query { return nil }
