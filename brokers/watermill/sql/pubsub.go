package sql

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// publisher is watermill-sql's, but creates tables first and returns errors that the engine knows.
type publisher struct {
	client *client
	inner  *wsql.Publisher
}

// Publish creates missing tables, including those that were dropped. A call is one INSERT: it stores all messages or
// none.
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	for try := 1; ; try++ {
		err := p.publish(topic, messages)
		if try == 2 || !missing(err) {
			return p.client.translate(err)
		}
		p.client.forget(topic)
	}
}

func (p *publisher) publish(topic string, messages []*message.Message) error {
	ctx, cancel := context.WithTimeout(messages[0].Context(), p.client.cfg.Broker.PublishTimeout)
	defer cancel()
	if err := p.client.ensure(ctx, topic); err != nil {
		return err
	}
	return p.inner.Publish(topic, messages...)
}

// Close implements message.Publisher.
func (p *publisher) Close() error { return errors.Join(p.inner.Close(), p.client.close()) }

// translate turns an error into one that the engine knows.
func (c *client) translate(err error) error {
	switch {
	case err == nil:
		return nil
	case missing(err):
		return fmt.Errorf("%w: %w", brokers.ErrUnroutable, c.hide(err))
	}
	return c.hide(err)
}

// subscriber reads topics for a group, with one of watermill-sql's for each subscription.
type subscriber struct {
	client  *client
	group   string
	closing chan struct{}
	close   sync.Once
	ended   sync.WaitGroup
}

func (c *client) subscriber(group string) (message.Subscriber, error) {
	if group == brokers.DefaultGroup {
		group = "" // as in plain Watermill services
	}
	return &subscriber{client: c, group: group, closing: make(chan struct{})}, nil
}

// closeTimeout bounds the wait for the transaction of an ack.
const closeTimeout = 5 * time.Second

// Subscribe ends in order. If its context ends, watermill-sql rolls back the last ack; if it is closed, it commits.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	c := s.client
	c.forget(topic) // it may have been dropped
	if err := c.ensure(ctx, topic); err != nil {
		return nil, err
	}
	offsets := c.offsets
	if mysql, ok := offsets.(mySQLOffsets); ok {
		switch has, err := mysql.has(ctx, c.db, topic, s.group); {
		case err != nil:
			return nil, c.hide(c.dialect.Mark(err, driver.ErrTemporary))
		case has:
			offsets = begun{offsets}
		}
	}
	p := c.cfg.Broker.Params
	deadline, busy := p.Duration("ack-deadline"), &atomic.Bool{}
	cfg := wsql.SubscriberConfig{
		ConsumerGroup: s.group, AckDeadline: &deadline, PollInterval: p.Duration("poll"),
		ResendInterval: 10 * time.Millisecond,
		SchemaAdapter:  busySchema{c.schema, busy}, OffsetsAdapter: offsets,
	}
	if c.cfg.Change != nil {
		c.cfg.Change(&cfg)
	}
	inner, err := wsql.NewSubscriber(c.reading, cfg, c.logger)
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	messages, err := inner.Subscribe(running, topic)
	if err != nil {
		cancel()
		return nil, c.hide(c.dialect.Mark(err, driver.ErrTemporary))
	}
	s.ended.Go(func() {
		select {
		case <-ctx.Done():
		case <-s.closing:
		}
		if !busy.Load() {
			cancel() // it may be waiting for another member's lock, which Close does not interrupt
		}
		timer := time.AfterFunc(closeTimeout, cancel)
		_ = inner.Close()
		timer.Stop()
		cancel()
	})
	return messages, nil
}

// Close implements message.Subscriber.
func (s *subscriber) Close() error {
	s.close.Do(func() { close(s.closing) })
	s.ended.Wait()
	return nil
}

// busySchema tracks whether a transaction holds messages: from the first row until the next query, which follows the
// commit.
type busySchema struct {
	wsql.SchemaAdapter

	busy *atomic.Bool
}

// SelectQuery implements wsql.SchemaAdapter.
func (n busySchema) SelectQuery(topic, group string, offsets wsql.OffsetsAdapter) wsql.Query {
	n.busy.Store(false)
	return n.SchemaAdapter.SelectQuery(topic, group, offsets)
}

// UnmarshalMessage implements wsql.SchemaAdapter.
func (n busySchema) UnmarshalMessage(row wsql.Scanner) (wsql.Row, error) {
	n.busy.Store(true)
	return n.SchemaAdapter.UnmarshalMessage(row)
}

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
