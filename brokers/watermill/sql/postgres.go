package sql

import (
	"fmt"

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
