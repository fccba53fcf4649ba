package sql

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"unicode/utf8"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
)

// postgresSchema is watermill-sql's schema for PostgreSQL with ids of any length, and metadata of any bytes.
type postgresSchema struct{ wsql.DefaultPostgreSQLSchema }

// postgresOffsets is watermill-sql's adapter for a group that may have lost its row.
type postgresOffsets struct {
	wsql.DefaultPostgreSQLOffsetsAdapter
}

var (
	_ wsql.SchemaAdapter  = postgresSchema{}
	_ wsql.OffsetsAdapter = postgresOffsets{}
	_ wsql.SchemaAdapter  = mySQLSchema{}
	_ wsql.OffsetsAdapter = mySQLOffsets{}
)

// postgresName is the maximum number of bytes in a name.
const postgresName = 63

func newPostgres(batch int) (postgresSchema, postgresOffsets) {
	schema := postgresSchema{wsql.DefaultPostgreSQLSchema{
		GenerateMessagesTableName: tableNames(`"`, messagesPrefix, postgresName),
		GeneratePayloadType:       func(string) string { return "BYTEA" },
		SubscribeBatchSize:        batch,
	}}
	return schema, postgresOffsets{wsql.DefaultPostgreSQLOffsetsAdapter{
		GenerateMessagesOffsetsTableName: tableNames(`"`, offsetsPrefix, postgresName),
	}}
}

// NextOffsetQuery starts at the beginning for a group without a row. watermill-sql adds the row once, when a
// subscription starts; without it, as after the tables were dropped and recreated, nothing would ever be delivered.
func (o postgresOffsets) NextOffsetQuery(topic, group string) wsql.Query {
	q := o.DefaultPostgreSQLOffsetsAdapter.NextOffsetQuery(topic, group)
	q.Query = "SELECT * FROM (" + q.Query + ") AS locked UNION ALL SELECT 0, '0'::xid8 WHERE NOT EXISTS (SELECT 1 FROM " +
		o.MessagesOffsetsTable(topic) + " WHERE consumer_group = $1)"
	return q
}

// SchemaInitializingQueries creates watermill-sql's table with a uuid of any length.
func (s postgresSchema) SchemaInitializingQueries(topic string) []wsql.Query {
	return []wsql.Query{{Query: fmt.Sprintf(`CREATE TABLE IF NOT EXISTS %s (
		"offset" BIGSERIAL,
		"uuid" TEXT NOT NULL,
		"created_at" TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
		"payload" %s DEFAULT NULL,
		"metadata" JSON DEFAULT NULL,
		"transaction_id" xid8 NOT NULL,
		PRIMARY KEY ("transaction_id", "offset"))`, s.MessagesTable(topic), s.PayloadColumnType(topic))}}
}

// InsertQuery implements wsql.SchemaAdapter.
func (s postgresSchema) InsertQuery(topic string, messages message.Messages) (wsql.Query, error) {
	messages, err := packed(messages)
	if err != nil {
		return wsql.Query{}, err
	}
	return s.DefaultPostgreSQLSchema.InsertQuery(topic, messages)
}

// UnmarshalMessage implements wsql.SchemaAdapter.
func (s postgresSchema) UnmarshalMessage(row wsql.Scanner) (wsql.Row, error) {
	var (
		r             wsql.Row
		transactionID int64
	)
	if err := row.Scan(&r.Offset, &transactionID, &r.UUID, &r.Payload, &r.Metadata); err != nil {
		return wsql.Row{}, fmt.Errorf("scan a message: %w", err)
	}
	r.ExtraData = map[string]any{"transaction_id": transactionID}
	return unpacked(r), nil
}

// mySQLSchema is watermill-sql's schema for MySQL and MariaDB with longer ids, metadata of any bytes, and locks that do
// not block a handler which publishes to its own topic.
type mySQLSchema struct{ wsql.DefaultMySQLSchema }

// mySQLOffsets is watermill-sql's adapter with a row for the group from the start, which its readers lock.
type mySQLOffsets struct {
	wsql.DefaultMySQLOffsetsAdapter
}

// mysqlName is the maximum number of characters in a name.
const mysqlName = 64

func newMySQL(batch int) (mySQLSchema, mySQLOffsets) {
	schema := mySQLSchema{wsql.DefaultMySQLSchema{
		GenerateMessagesTableName: tableNames("`", messagesPrefix, mysqlName),
		GeneratePayloadType:       func(string) string { return "LONGBLOB" },
		SubscribeBatchSize:        batch,
	}}
	return schema, mySQLOffsets{wsql.DefaultMySQLOffsetsAdapter{
		GenerateMessagesOffsetsTableName: tableNames("`", offsetsPrefix, mysqlName),
	}}
}

// SchemaInitializingQueries creates watermill-sql's table with a longer uuid.
func (s mySQLSchema) SchemaInitializingQueries(topic string) []wsql.Query {
	return []wsql.Query{{Query: fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s ("+
		"`offset` BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,"+
		"`uuid` VARCHAR(255) NOT NULL,"+
		"`created_at` TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,"+
		"`payload` %s DEFAULT NULL,"+
		"`metadata` JSON DEFAULT NULL)", s.MessagesTable(topic), s.PayloadColumnType(topic))}}
}

// InsertQuery implements wsql.SchemaAdapter.
func (s mySQLSchema) InsertQuery(topic string, messages message.Messages) (wsql.Query, error) {
	messages, err := packed(messages)
	if err != nil {
		return wsql.Query{}, err
	}
	return s.DefaultMySQLSchema.InsertQuery(topic, messages)
}

// UnmarshalMessage implements wsql.SchemaAdapter.
func (s mySQLSchema) UnmarshalMessage(row wsql.Scanner) (wsql.Row, error) {
	var r wsql.Row
	if err := row.Scan(&r.Offset, &r.UUID, &r.Payload, &r.Metadata); err != nil {
		return wsql.Row{}, fmt.Errorf("scan a message: %w", err)
	}
	return unpacked(r), nil
}

// SubscribeIsolationLevel locks no gaps. With watermill-sql's SERIALIZABLE, the reader's transaction locks the end of
// the table while the handler runs, and a publish to it waits for that handler, which may be waiting for the publish.
func (mySQLSchema) SubscribeIsolationLevel() sql.IsolationLevel { return sql.LevelReadCommitted }

// SelectQuery reads with shared locks, as SERIALIZABLE would: it waits for a row whose transaction is still open,
// instead of skipping it and losing it when a later one is acked.
func (s mySQLSchema) SelectQuery(topic, group string, offsets wsql.OffsetsAdapter) wsql.Query {
	q := s.DefaultMySQLSchema.SelectQuery(topic, group, offsets)
	q.Query += " LOCK IN SHARE MODE"
	return q
}

// has reports whether the group has its row.
func (o mySQLOffsets) has(ctx context.Context, db *sql.DB, topic, group string) (bool, error) {
	var n int
	err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+o.MessagesOffsetsTable(topic)+" WHERE consumer_group = ?",
		group).Scan(&n)
	return n > 0, err
}

// begun is the adapter of a group that has its row: adding it again would wait for the handler that has it locked.
type begun struct{ wsql.OffsetsAdapter }

// BeforeSubscribingQueries implements wsql.OffsetsAdapter.
func (begun) BeforeSubscribingQueries(string, string) []wsql.Query { return nil }

// BeforeSubscribingQueries adds the group's row. Without it there is nothing to lock until the first ack.
func (o mySQLOffsets) BeforeSubscribingQueries(topic, group string) []wsql.Query {
	return []wsql.Query{{
		Query: "INSERT INTO " + o.MessagesOffsetsTable(topic) +
			" (consumer_group, offset_acked, offset_consumed) VALUES (?, 0, 0) ON DUPLICATE KEY UPDATE consumer_group = " +
			"consumer_group",
		Args: []any{group},
	}}
}

// keyBytes holds metadata that JSON cannot represent: a JSON array of [name, value], both in base64.
const keyBytes = "x-redrive-bytes"

// packed returns messages whose metadata JSON preserves: encoding/json replaces bytes that are not UTF-8.
func packed(messages message.Messages) (message.Messages, error) {
	out := make(message.Messages, len(messages))
	for i, m := range messages {
		out[i] = m
		var pairs [][2][]byte
		for name, value := range m.Metadata {
			if !utf8.ValidString(name) || !utf8.ValidString(value) {
				pairs = append(pairs, [2][]byte{[]byte(name), []byte(value)})
			}
		}
		if pairs == nil {
			continue
		}
		text, err := json.Marshal(pairs)
		if err != nil {
			return nil, err
		}
		out[i] = m.Copy()
		for _, pair := range pairs {
			delete(out[i].Metadata, string(pair[0]))
		}
		out[i].Metadata[keyBytes] = string(text)
	}
	return out, nil
}

// unpacked is the message of a row, whatever its metadata: an error would stop the topic.
func unpacked(r wsql.Row) wsql.Row {
	r.Msg = message.NewMessage(string(r.UUID), r.Payload)
	read := message.Metadata{}
	if json.Unmarshal(r.Metadata, &read) == nil {
		maps.Copy(r.Msg.Metadata, read)
	} else if len(r.Metadata) > 0 {
		r.Msg.Metadata["x-metadata"] = string(r.Metadata) // another producer's; nothing of it is lost
	}
	if text, ok := r.Msg.Metadata[keyBytes]; ok {
		var pairs [][2][]byte
		if json.Unmarshal([]byte(text), &pairs) == nil {
			delete(r.Msg.Metadata, keyBytes)
			for _, pair := range pairs {
				r.Msg.Metadata[string(pair[0])] = string(pair[1])
			}
		}
	}
	return r
}
