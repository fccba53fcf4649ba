package dlqhttp_test

import (
	"testing"

	"github.com/redrive-go/redrive/dlq/dlqhttp/dlqhttptest"
)

// No parameter accepts a value that makes the server or the store fail; the integration tests cover the other
// databases.
func TestParameters_HostileValues(t *testing.T) {
	s := newServer(t)
	s.seed(t, 2)
	dlqhttptest.Hostile(t, s.url+"/api/v1")
}
