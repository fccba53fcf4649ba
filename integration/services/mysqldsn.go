package services

import (
	"errors"
	"net/url"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// MySQLDSN converts mysql://user:password@host:port/database?parseTime=true to a DSN for Go's MySQL driver. Times are
// parsed unless the URL disables that.
func MySQLDSN(rawURL string) (string, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != "mysql" {
		return "", errors.New("services: not a mysql:// URL")
	}
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.DBName = "tcp", u.Host, strings.TrimPrefix(u.Path, "/")
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	dsn := cfg.FormatDSN()
	params := u.Query()
	if !params.Has("parseTime") {
		params.Set("parseTime", "true")
	}
	if strings.Contains(dsn, "?") {
		return dsn + "&" + params.Encode(), nil
	}
	return dsn + "?" + params.Encode(), nil
}
