package sqlstore

import (
	"context"
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"
)

// mysqlParams are the parameters of go-sql-driver that change nothing of what this package relies on.
var mysqlParams = []string{
	"allowCleartextPasswords", "allowFallbackToPlaintext", "allowNativePasswords", "allowOldPasswords", "checkConnLiveness", "collation",
	"compress", "connectionAttributes", "maxAllowedPacket", "parseTime", "readTimeout", "rejectReadOnly", "serverPubKey", "socket",
	"timeout", "tls", "writeTimeout",
}

func openMySQL(ctx context.Context, u *url.URL) (*Store, error) {
	c, err := parseMySQL(u)
	if err != nil {
		return nil, err
	}
	return c.open(ctx)
}

func parseMySQL(u *url.URL) (*server, error) {
	c := &server{
		drivers: []knownDriver{{"mysql", "github.com/go-sql-driver/mysql"}},
		readers: 8, writers: 4, lifetime: 30 * time.Minute, dialect: mysql{},
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errors.New("sqlstore: mysql URL: parameters: a % or ; that is not percent-encoded")
	}
	native, err := readParams("mysql", query, c.params(), func(key string) bool { return slices.Contains(mysqlParams, key) })
	if err != nil {
		return nil, err
	}
	if password, ok := u.User.Password(); ok {
		c.keepSecrets(password)
	}
	c.dsn, err = mysqlDSN(u, native)
	return c, err
}

// mysqlDSN writes go-sql-driver's own form, user:password@tcp(host:port)/database?parameters. Only the database is escaped in it: the
// driver looks for the last slash, the last @ before it, and the first colon.
func mysqlDSN(u *url.URL, params url.Values) (string, error) {
	database := strings.TrimPrefix(u.Path, "/")
	if database == "" || strings.Contains(database, "/") {
		return "", errors.New("sqlstore: mysql URL without a database: write mysql://user@host:3306/database")
	}
	var dsn strings.Builder
	if u.User != nil {
		if strings.Contains(u.User.Username(), ":") {
			return "", errors.New("sqlstore: mysql URL: the driver takes no user name with a colon")
		}
		dsn.WriteString(u.User.Username())
		if password, ok := u.User.Password(); ok {
			dsn.WriteString(":" + password)
		}
		dsn.WriteString("@")
	}
	host, port := u.Hostname(), u.Port()
	if host == "" {
		host = "localhost"
	}
	if port == "" {
		port = "3306"
	}
	address := "tcp(" + net.JoinHostPort(host, port) + ")"
	if socket := params.Get("socket"); socket != "" {
		address = "unix(" + socket + ")"
	}
	params.Del("socket")
	params.Set("interpolateParams", "true") // one round trip instead of three
	// A server that is not strict cuts what is too long, and says nothing. This also takes NO_BACKSLASH_ESCAPES away, and ANSI_QUOTES.
	params.Set("sql_mode", "'STRICT_ALL_TABLES'")
	dsn.WriteString(address + "/" + url.PathEscape(database) + "?" + params.Encode())
	return dsn.String(), nil
}
