// Package scheme is the home of the URL schemes that are spellings of others.
package scheme

import "strings"

// Adapted begins the schemes of Watermill's own adapters.
const Adapted = "watermill+"

// Canonical is the spelling of a scheme that stands for all of its spellings: watermill+amqp for watermill+amqps.
func Canonical(s string) string {
	native, ok := strings.CutPrefix(s, Adapted)
	switch native {
	case "amqps":
		native = "amqp"
	case "nats+tls":
		native = "nats"
	case "postgresql":
		native = "postgres"
	case "mariadb":
		native = "mysql"
	case "sqlite3":
		native = "sqlite"
	}
	if ok {
		return Adapted + native
	}
	return native
}

// Native is the canonical scheme of the driver without Watermill's adapter: amqp for watermill+amqps.
func Native(s string) string { return Canonical(strings.TrimPrefix(s, Adapted)) }

// Same reports whether two schemes are spellings of the same broker.
func Same(a, b string) bool { return Canonical(a) == Canonical(b) }
