//go:build mysql

package drivers

import _ "github.com/go-sql-driver/mysql" // what the tag is for

func init() { built = append(built, "mysql") } //nolint:gochecknoinits // a list made by build tags
