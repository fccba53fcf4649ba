package rabbitmq_test

import (
	"testing"

	"github.com/redrive-go/redrive/integration/services"
)

func TestMain(m *testing.M) { services.Main(m) }
