package rabbitmq_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/services"
)

// second is a broker in addition to the shared one, with a TLS port that requires client certificates. Tests may
// reconfigure, alarm, freeze and kill it. It starts when the first test needs it.
var second struct {
	sync.RWMutex // locked by a test that uses the broker exclusively

	start  sync.Mutex // guards the fields below
	rabbit *services.Rabbit
	err    error
}

// borrowSecond returns the second broker for use until the test ends; with alone no other test uses it meanwhile. A
// test that kills it need not restart it.
func borrowSecond(t *testing.T, alone bool) *services.Rabbit {
	t.Helper()
	if alone {
		second.Lock()
		t.Cleanup(second.Unlock)
	} else {
		second.RLock()
		t.Cleanup(second.RUnlock)
	}
	second.start.Lock()
	defer second.start.Unlock()
	if second.rabbit == nil && second.err == nil {
		second.rabbit, second.err = services.StartRabbitMQ(context.Background(), services.RabbitConfig{
			TLS: true, Conf: "ssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = true",
		})
	}
	services.Need(t, second.err)
	if second.rabbit.PID() == 0 {
		require.NoError(t, second.rabbit.Start(t.Context()))
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the second broker's log:\n%s", second.rabbit.Log())
		}
	})
	return second.rabbit
}

// closeSecond stops the second broker when all tests have ended.
func closeSecond() error {
	if second.rabbit == nil {
		return nil
	}
	return second.rabbit.Close()
}
