package dlqhttp_test

import (
	"testing"

	"github.com/redrive-go/redrive/dlq/dlqhttp/dlqhttptest"
)

// No parameter takes a value that makes the server or the store stumble; on the other databases this is tried in the
// integration tests.
func TestParameters_Hostile(t *testing.T) {
	s := newServer(t)
	s.seed(t, 2)
	dlqhttptest.Hostile(t, s.url+"/api/v1")
}
