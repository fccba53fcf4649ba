//go:build postgres

package drivers

import _ "github.com/jackc/pgx/v5/stdlib" // what the tag is for

func init() { built = append(built, "postgres") } //nolint:gochecknoinits // a list made by build tags
