// Package scheme compares the URL schemes of brokers.
package scheme

// Same reports whether two schemes are spellings of the same broker.
func Same(a, b string) bool {
	canonical := func(s string) string {
		switch s {
		case "amqps":
			return "amqp"
		case "postgresql":
			return "postgres"
		case "mariadb":
			return "mysql"
		}
		return s
	}
	return canonical(a) == canonical(b)
}
