package sql

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"

	"github.com/redrive-go/redrive/internal/sqldb"
)

// tables remembers the topics whose tables are there.
type tables struct {
	making chan struct{} // the token of the one that makes tables

	mu    sync.Mutex
	known map[string]struct{}
}

// maxKnown bounds the topics remembered: their names may come from messages.
const maxKnown = 10_000

// ensure makes the tables of a topic. It does so under a lock of the database: watermill-sql makes them without one,
// and of services that start together on PostgreSQL all but one fail.
func (c *client) ensure(ctx context.Context, topic string) error {
	c.mu.Lock()
	_, known := c.known[topic]
	c.mu.Unlock()
	if known || !c.cfg.Broker.Params.Bool("auto-create") {
		return nil
	}
	there, err := c.exist(ctx, topic)
	if err == nil && !there {
		err = c.create(ctx, topic)
	}
	if err != nil {
		return fmt.Errorf("tables of topic %s: %w", topic, c.hide(err))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.known) >= maxKnown {
		clear(c.known)
	}
	c.known[topic] = struct{}{}
	return nil
}

// exist looks before anything is created: on MySQL even CREATE TABLE IF NOT EXISTS waits for every handler that has the
// table in its transaction, and on PostgreSQL it needs a right that a service on tables of others may not have.
func (c *client) exist(ctx context.Context, topic string) (bool, error) {
	schema, ok := c.schema.(interface{ MessagesTable(topic string) string })
	offsets, ok2 := c.offsets.(interface{ MessagesOffsetsTable(topic string) string })
	if !ok || !ok2 {
		return false, nil // adapters of the user's that do not name their tables
	}
	for _, table := range []string{schema.MessagesTable(topic), offsets.MessagesOffsetsTable(topic)} {
		_, err := c.db.ExecContext(ctx, "SELECT 1 FROM "+table+" WHERE 1 = 0") //nolint:gosec // G202: the adapter quotes its names
		switch {
		case missing(err):
			return false, nil
		case denied(err):
			// A producer that may only insert; and if the table is missing, its insert says so.
		case err != nil:
			return false, err
		}
	}
	return true, nil
}

func (c *client) create(ctx context.Context, topic string) error {
	queries := append([]wsql.Query(nil), c.schema.SchemaInitializingQueries(topic)...)
	queries = append(queries, c.offsets.SchemaInitializingQueries(topic)...)
	// One at a time also here: those that wait for the lock keep a connection each, and would leave none to the one
	// that has it.
	select {
	case c.making <- struct{}{}:
		defer func() { <-c.making }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return c.dialect.WithLock(ctx, c.db, "redrive_watermill_tables", func() error {
		for _, q := range queries {
			if _, err := c.db.ExecContext(ctx, q.Query, q.Args...); err != nil {
				return err
			}
		}
		return nil
	})
}

// forget makes ensure make them again.
func (c *client) forget(topic string) {
	c.mu.Lock()
	delete(c.known, topic)
	c.mu.Unlock()
}

// missing are the codes of statements on a table that is not there.
func missing(err error) bool { return sqldb.IsCode(err, "42P01", "1146") }

// denied are the codes of statements that the user has no right to.
func denied(err error) bool { return sqldb.IsCode(err, "42501", "1142") }

// tableName is prefix and topic as watermill-sql joins them. PostgreSQL cuts longer names, so that two topics share a
// table; these end in a hash instead.
func tableName(prefix, topic string, longest int) string {
	name := prefix + topic
	if len(name) <= longest {
		return name
	}
	sum := sha256.Sum256([]byte(topic))
	hash := "_" + hex.EncodeToString(sum[:6])
	return name[:longest-len(hash)] + hash
}

const (
	messagesPrefix = "watermill_"
	offsetsPrefix  = "watermill_offsets_"
)
