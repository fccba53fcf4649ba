package access_test

import (
	"testing"

	"github.com/redrive-go/redrive/dlq/dlqhttp/dlqhttptest"
)

// No parameter accepts a value on which a database fails: a value that only some databases accept is refused before it
// reaches one.
func TestParameters_HostileValues(t *testing.T) {
	t.Parallel()
	for name, database := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dlqhttptest.Hostile(t, serve(t, database(t))+"/api/v1")
		})
	}
}
