package sql

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"

	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// tables remembers the topics whose tables exist.
type tables struct {
	making chan struct{} // held while creating tables

	mu    sync.Mutex
	known map[string]struct{}
}

// maxKnown bounds the remembered topics: their names may come from messages.
const maxKnown = 10_000

// ensure creates the tables of a topic under a database lock: watermill-sql uses none, and if services start together
// on PostgreSQL, all but one fail.
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
		return fmt.Errorf("tables of topic %s: %w", topic, c.hide(c.dialect.Mark(err, driver.ErrTemporary)))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.known) >= maxKnown {
		clear(c.known)
	}
	c.known[topic] = struct{}{}
	return nil
}

// exist checks before anything is created: on MySQL even CREATE TABLE IF NOT EXISTS waits for every handler that uses
// the table in its transaction, and on PostgreSQL it needs a right that a service with foreign tables may lack.
func (c *client) exist(ctx context.Context, topic string) (bool, error) {
	schema, ok := c.schema.(interface{ MessagesTable(topic string) string })
	offsets, ok2 := c.offsets.(interface{ MessagesOffsetsTable(topic string) string })
	if !ok || !ok2 {
		return false, nil // custom adapters that do not name their tables
	}
	for _, table := range []string{schema.MessagesTable(topic), offsets.MessagesOffsetsTable(topic)} {
		_, err := c.db.ExecContext(ctx, "SELECT 1 FROM "+table+" WHERE 1 = 0") //nolint:gosec // G202: the adapter quotes its names
		switch {
		case missing(err):
			return false, nil
		case denied(err):
			// The producer may only be allowed to insert; if the table is missing, its insert reports it.
		case err != nil:
			return false, err
		}
	}
	return true, nil
}

func (c *client) create(ctx context.Context, topic string) error {
	queries := append([]wsql.Query(nil), c.schema.SchemaInitializingQueries(topic)...)
	queries = append(queries, c.offsets.SchemaInitializingQueries(topic)...)
	// One at a time in this process too: each waiter for the lock keeps a connection, and could leave none to its holder.
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

// databaseID is kept in the database, so it is the same from everywhere, and survives upgrades, restores and failovers.
func (c *client) databaseID(ctx context.Context) (id string, err error) {
	read := func() error {
		return c.db.QueryRowContext(ctx, "SELECT id FROM redrive_watermill_server WHERE only_row = 1").Scan(&id)
	}
	if err = read(); err == nil {
		return id, nil
	}
	if !missing(err) && !errors.Is(err, sql.ErrNoRows) {
		return "", c.hide(err)
	}
	if !c.cfg.Broker.Params.Bool("auto-create") {
		return "", errors.New("the table redrive_watermill_server does not exist, and auto-create=false")
	}
	err = c.dialect.WithLock(ctx, c.db, "redrive_watermill_tables", func() error {
		if _, err := c.db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS redrive_watermill_server "+
			"(only_row SMALLINT PRIMARY KEY, id VARCHAR(36) NOT NULL)"); err != nil {
			return err
		}
		_, err := c.dialect.InsertNew(ctx, c.db, "INSERT INTO redrive_watermill_server (only_row, id) VALUES (1, ?)",
			uuid.NewString())
		return err
	})
	if err == nil {
		err = read()
	}
	if err != nil {
		return "", c.hide(err)
	}
	return id, nil
}

// forget makes ensure check them again.
func (c *client) forget(topic string) {
	c.mu.Lock()
	delete(c.known, topic)
	c.mu.Unlock()
}

// missing are the error codes of statements on a missing table.
func missing(err error) bool { return sqldb.IsCode(err, "42P01", "1146") }

// denied are the error codes of statements that the user may not run.
func denied(err error) bool { return sqldb.IsCode(err, "42501", "1142") }

// tableNames returns the quoted names of tables, prefix and topic as watermill-sql joins them. PostgreSQL truncates
// longer names, so that two topics would share a table; these end in a hash instead.
func tableNames(quote, prefix string, longest int) func(topic string) string {
	return func(topic string) string {
		name := prefix + topic
		if len(name) > longest {
			sum := sha256.Sum256([]byte(topic))
			hash := "_" + hex.EncodeToString(sum[:6])
			name = name[:longest-len(hash)] + hash
		}
		return quote + name + quote
	}
}

const (
	messagesPrefix = "watermill_"
	offsetsPrefix  = "watermill_offsets_"
)
