package access_test

import (
	"testing"

	"github.com/redrive-go/redrive/dlq/dlqhttp/dlqhttptest"
)

// No parameter takes a value that makes a database stumble: what one of them takes and another does not is refused
// before it.
func TestParameters_Hostile(t *testing.T) {
	t.Parallel()
	for name, database := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dlqhttptest.Hostile(t, serve(t, database(t))+"/api/v1")
		})
	}
}
