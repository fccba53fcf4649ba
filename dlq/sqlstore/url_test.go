package sqlstore

import (
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func parse(t *testing.T, raw string) *url.URL {
	t.Helper()
	u, err := url.Parse(raw)
	require.NoError(t, err)
	return u
}

func TestParseURL(t *testing.T) {
	t.Parallel()
	const (
		commits   = "autocommit=1&charset=utf8mb4&completion_type=0&interpolateParams=true"
		packet    = "&maxAllowedPacket=0"
		session   = "&rejectReadOnly=true&sql_mode=%27STRICT_ALL_TABLES%27&sql_select_limit=18446744073709551615"
		mysqlOurs = commits + packet + session
	)
	for raw, want := range map[string]string{
		"postgresql://ana:s%40cret@db:5433/app?sslmode=require&x-readers=3&options=-c%20geqo=off": "postgres://ana:s%40cret@db:5433/app?options=-c%20geqo%3Doff&sslmode=require",
		"mysql://ana:p%40ss%2Fw:rd@db:3307/app":                                                   "ana:p@ss/w:rd@tcp(db:3307)/app?" + mysqlOurs,
		"mariadb://db/app?tls=true&x-readers=1": "tcp(db:3306)/app?" +
			mysqlOurs + "&tls=true",
		"mysql://ana@/app?socket=/run/mysqld/mysqld.sock": "ana@unix(/run/mysqld/mysqld.sock)/app?" + mysqlOurs,
		"mysql://ana@[::1]:3306/a%3Fb?parseTime=true":     "ana@tcp([::1]:3306)/a%3Fb?" + commits + packet + "&parseTime=true" + session,
		"sqlite:dead.db?x-synchronous=normal":             "file:dead.db?_txlock=immediate",
	} {
		c, err := parseURL(parse(t, raw))
		require.NoError(t, err, raw)
		require.Equal(t, want, c.DSN, raw)
	}
	for raw, want := range map[string][]any{
		"postgres://db/app?readers=3&writers=2&conn-lifetime=1h": {3, 2, time.Hour, ""},
		"postgres://db/app?driver=pgx-traced":                    {8, 4, 30 * time.Minute, "pgx-traced"},
		"sqlite:a.db?readers=2":                                  {2, 1, time.Duration(0), ""},
	} {
		c, err := parseURL(parse(t, raw))
		require.NoError(t, err, raw)
		require.Equal(t, want, []any{c.readers, c.writers, c.lifetime, c.driver}, raw)
	}
}

func TestParseURL_Refuses(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"postgres://ana:secret@db": "names no database",
		"postgres://ana:secret@db/app?sslmod=require": `unknown parameter "sslmod"; ` +
			`known are archive, conn-lifetime, driver, migrate, partition, readers, schema, writers`,
		"postgres://ana:secret@db/app?readers=0":             "parameter readers: must be a number from 1 to 1000",
		"postgres://ana:secret@db/app?writers=1":             "parameter writers: must be a number from 2",
		"postgres://ana:secret@db/app?x-migrate=perhap":      "parameter x-migrate: must be true or false",
		"postgres://ana:secret@db/app?conn-lifetime=5":       "must be a duration such as 30m",
		"postgres://ana:secret@db/app?conn_lifetime=5s":      `unknown parameter "conn_lifetime"`,
		"postgres://ana:secret@db/app?a=%zz":                 "percent-encoded",
		"mysql://ana:secret@db":                              "names no database",
		"mysql://ana:secret@db/a/b":                          "names no database",
		"mysql://a%3Ab:secret@db/app":                        "colon in the user name",
		"mysql://ana:secret@db/app?loc=Local":                `unknown parameter "loc"`,
		"mysql://ana@[::1]/a%20b?interpolateParams":          "unknown parameter",
		"mysql://ana@db/app?sql_mode=ANSI&multiStatements=1": "unknown parameter",
		"postgres://ana:secret@db/app?partition=week":        "parameter partition: must be month",
		"mysql://ana:secret@db/app?schema=payroll":           `unknown parameter "schema"`,
		"mysql://ana:secret@db/app?a=%zz":                    "percent-encoded",
	} {
		_, err := parseURL(parse(t, raw))
		require.ErrorContains(t, err, want, raw)
		require.NotContains(t, err.Error(), "secret", raw)
	}
	_, err := Open(t.Context(), "postgres://ana:secret@db/app")
	require.ErrorContains(t, err, `forgotten import? add _ "github.com/jackc/pgx/v5/stdlib"`)
	_, err = Open(t.Context(), "mariadb://ana:secret@db/app")
	require.ErrorContains(t, err, `forgotten import? add _ "github.com/go-sql-driver/mysql"`)
}

// A payload that PostgreSQL's jsonb refuses is not projected.
func TestJSONBReadable(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string]bool{
		`{"a":1}`: true, `"\ud83d\ude00"`: true, `1e999`: true, `-0.5E-12`: true, `"\\u0000"`: true, `"1e9999"`: true,
		`[1,2.5,true,null]`: true,
		``:                  false, `{`: false, `"\u0000"`: false, `"\ud83d"`: false, `"\ud83dx"`: false,
		`"\ud83d\u0041"`: false,
		`"\ude00"`:       false,
		`1e1000`:         false, `1E-00001000`: false, `1e+0000000999`: true, "\"\xff\"": false,
	} {
		require.Equal(t, want, postgresJSON.accept([]byte(payload)), payload)
	}
}
