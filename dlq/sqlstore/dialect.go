package sqlstore

import (
	"context"
	"database/sql"
	"io/fs"
	"time"

	"github.com/huandu/go-sqlbuilder"
	"github.com/pressly/goose/v3"
)

// dialect is what differs from one database to the other. Everything else in this package is written once.
type dialect interface {
	// flavor is for the statements that are put together.
	flavor() sqlbuilder.Flavor
	// migrations has the schema; goose is how the migrator talks to this database.
	migrations() (fs.FS, goose.Dialect, []goose.ProviderOption)
	// rebind turns the ? of a statement that is written by hand into the database's placeholders.
	rebind(query string) string
	// forUpdate ends a SELECT whose rows will be changed; empty where a transaction has the whole database.
	forUpdate() string
	// insertIgnore is a multi-row INSERT that leaves rows alone whose key is there, and returns id and key of the new ones.
	insertIgnore(table string, columns []string, rows int, key string) string
	// upsert is an INSERT that, where the key is there, adds to the columns of add and takes the later of those of latest.
	upsert(table string, columns, key, add, latest []string) string
	// time is a time as a parameter: UTC with microseconds. A zero time is NULL.
	time(t time.Time) any
	// contains is a condition that column holds text, ASCII letters in any case; the parameter is made by containsArg.
	contains(column, parameter string) string
	containsArg(text string) any
	// containsBytes is a condition that a binary column holds the parameter.
	containsBytes(column, parameter string) string
	// jsonReadable reports whether the database's JSON functions can read this payload, which is JSON.
	jsonReadable(payload []byte) bool
	// inTx runs fn in a transaction that commits durably, whatever the database's defaults say.
	inTx(ctx context.Context, db *sql.DB, fn func(*sql.Tx) error) error
}
