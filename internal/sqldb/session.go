package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"regexp"
)

// everyRow is the value of sql_select_limit without a limit.
const everyRow = "18446744073709551615"

// setMySQLSession adds the variables of a session to a DSN's parameters. An operator may change their values on the
// server, and rows would be lost without an error: without autocommit, or with chained transactions, nothing that we
// confirmed is committed, and a limit hides rows from our queries.
func setMySQLSession(params url.Values) {
	params.Set("autocommit", "1")
	params.Set("completion_type", "0")
	params.Set("sql_select_limit", everyRow)
	if !params.Has("sql_mode") {
		// Without strict mode, the server truncates values silently. This also disables NO_BACKSLASH_ESCAPES and
		// ANSI_QUOTES.
		params.Set("sql_mode", "'STRICT_ALL_TABLES'")
	}
}

// strictMode matches the modes in which MySQL does not truncate what is too long.
var strictMode = regexp.MustCompile(`STRICT_(ALL|TRANS)_TABLES|TRADITIONAL`)

// CheckSession refuses a pool of the application whose sessions would lose or truncate rows without an error. The pools
// of a Source need no check.
func (d Dialect) CheckSession(ctx context.Context, db *sql.DB) error {
	if d != MySQL {
		return nil
	}
	var mode string
	var commits, whole bool
	err := db.QueryRowContext(ctx, "SELECT concat(@@sql_mode, ' '), @@autocommit = 1 AND @@completion_type = 'NO_CHAIN', "+
		"@@sql_select_limit = "+everyRow).Scan(&mode, &commits, &whole)
	switch {
	case err != nil:
		return fmt.Errorf("read the session's variables: %w", err)
	case !strictMode.MatchString(mode):
		return errors.New("the connections are not strict, and would cut what is too long: add " +
			"sql_mode='STRICT_ALL_TABLES' to the DSN")
	case !commits:
		return errors.New("the connections would not commit what is stored: add autocommit=1&completion_type=0 to the DSN")
	case !whole:
		return errors.New("the connections would not read all rows: add sql_select_limit=" + everyRow + " to the DSN")
	}
	return nil
}
