package sql

import (
	"context"
	"database/sql"
	"fmt"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
)

// mySQLSchema is watermill-sql's schema for MySQL and MariaDB with longer ids, metadata of any bytes, and locks that do
// not block a handler which publishes to its own topic.
type mySQLSchema struct{ wsql.DefaultMySQLSchema }

// mySQLOffsets is watermill-sql's adapter with a row for the group from the start, which its readers lock.
type mySQLOffsets struct {
	wsql.DefaultMySQLOffsetsAdapter
}

var (
	_ wsql.SchemaAdapter  = mySQLSchema{}
	_ wsql.OffsetsAdapter = mySQLOffsets{}
)

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
