package sqlstore

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"time"
)

// postgresParams are the parameters of pgx and of PostgreSQL's own client library, and the settings of a session that make sense here.
// Any other setting can be given as options=-c%20name=value.
var postgresParams = []string{
	"application_name", "channel_binding", "client_encoding", "connect_timeout", "default_query_exec_mode", "description_cache_capacity",
	"host", "idle_in_transaction_session_timeout", "krbspn", "krbsrvname", "lock_timeout", "options", "passfile", "password", "port",
	"role", "search_path", "service", "servicefile", "sslcert", "sslkey", "sslmode", "sslnegotiation", "sslpassword", "sslrootcert",
	"sslsni", "statement_cache_capacity", "statement_timeout", "target_session_attrs", "timezone", "user", "work_mem",
}

func openPostgres(ctx context.Context, u *url.URL) (*Store, error) {
	c, err := parsePostgres(u)
	if err != nil {
		return nil, err
	}
	return c.open(ctx)
}

func parsePostgres(u *url.URL) (*server, error) {
	d := postgres{}
	c := &server{
		drivers: []knownDriver{{"pgx", "github.com/jackc/pgx/v5/stdlib"}},
		readers: 8, writers: 4, lifetime: 30 * time.Minute,
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errors.New("sqlstore: postgres URL: parameters: a % or ; that is not percent-encoded")
	}
	ours := c.params()
	ours["trigram"] = boolean(&d.trigram)
	ours["partition"] = func(value string) error {
		if d.monthly = value == "month"; !d.monthly {
			return errors.New("must be month")
		}
		return nil
	}
	native, err := readParams("postgres", query, ours, func(key string) bool { return slices.Contains(postgresParams, key) })
	if err != nil {
		return nil, err
	}
	if strings.Trim(u.Path, "/") == "" && !native.Has("service") {
		return nil, errors.New("sqlstore: postgres URL without a database: write postgres://user@host:5432/database")
	}
	if password, ok := u.User.Password(); ok {
		c.keepSecrets(password)
	}
	c.keepSecrets(native.Get("password"), native.Get("sslpassword"))
	dsn := *u
	// As libpq reads it, where a + is no space.
	dsn.Scheme, dsn.RawQuery = "postgres", strings.ReplaceAll(native.Encode(), "+", "%20")
	c.dsn, c.dialect = dsn.String(), d
	return c, nil
}
