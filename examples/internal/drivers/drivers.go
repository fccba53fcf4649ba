// Package drivers is what the examples import: brokers in memory and on SQLite, and dead letters in a SQLite file. The
// others are compiled with a build tag, so that the first go run does not take minutes to build clients of servers that
// are not there:
//
//	BROKER_URL=kafka://127.0.0.1:9092 go run -tags kafka ./examples/orders
//
// The tags are amqp, kafka, nats, postgres, mysql and watermill (Watermill's own adapters, watermill+kafka:// and the
// like), and a list of them is joined by commas. A service imports the one driver that it uses, and needs no tags.
package drivers

import (
	"fmt"
	"slices"
	"strings"

	_ "modernc.org/sqlite" // the dead letters' file

	_ "github.com/redrive-go/redrive/brokers/memory" // these need no tag
	_ "github.com/redrive-go/redrive/brokers/sqlqueue"
	_ "github.com/redrive-go/redrive/dlq/sqlstore"
)

// tags are those that compile the driver of a scheme.
var tags = map[string]string{
	"amqp": "amqp", "amqps": "amqp", "kafka": "kafka", "nats": "nats", "nats+tls": "nats",
	"postgres": "postgres", "postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql",
}

// tagsOf are the tags that a scheme needs. Watermill's SQL adapter needs a client of the database, the others bring
// theirs.
func tagsOf(scheme string, watermill bool) (needed []string) {
	tag, ok := tags[scheme]
	if watermill {
		needed = append(needed, "watermill")
		ok = ok && (tag == "postgres" || tag == "mysql")
	}
	if ok {
		needed = append(needed, tag)
	}
	return needed
}

// built are the tags of this program.
var built []string

// Check returns an error that names the build tags which the URLs need and this program was built without.
func Check(urls ...string) error {
	var needed, missing []string
	for _, u := range urls {
		scheme, _, _ := strings.Cut(u, ":")
		adapted, ok := strings.CutPrefix(scheme, "watermill+")
		for _, tag := range tagsOf(adapted, ok) {
			if slices.Contains(needed, tag) {
				continue
			}
			if needed = append(needed, tag); !slices.Contains(built, tag) && !slices.Contains(missing, scheme) {
				missing = append(missing, scheme)
			}
		}
	}
	if missing == nil {
		return nil
	}
	slices.Sort(needed)
	const text = "no client for %s is compiled into this program: go run -tags %s ./examples/..."
	//nolint:staticcheck // ST1005: a pattern of packages ends so
	return fmt.Errorf(text, strings.Join(missing, " and "), strings.Join(needed, ","))
}
