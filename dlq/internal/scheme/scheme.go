// Package scheme knows the URL schemes that are spellings of others.
package scheme

// Canonical is the spelling of a scheme that stands for all of its spellings.
func Canonical(s string) string {
	switch s {
	case "amqps":
		return "amqp"
	case "postgresql":
		return "postgres"
	case "mariadb":
		return "mysql"
	case "sqlite3":
		return "sqlite"
	}
	return s
}

// Same reports whether two schemes are spellings of the same broker.
func Same(a, b string) bool { return Canonical(a) == Canonical(b) }
