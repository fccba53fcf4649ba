package command_test

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// A server that starts during an outage of RabbitMQ collects its dead letters once RabbitMQ is back.
func TestServe_BrokerComesUp(t *testing.T) {
	t.Parallel()
	rabbit := services.SharedRabbitMQ(t).VHost(t)
	declare(t, rabbit, map[string]amqp.Table{"orders_dlq": {"x-queue-type": "quorum"}})
	service, err := amqp.Dial(rabbit)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, service.Close()) })
	channel, err := service.Channel()
	require.NoError(t, err)
	require.NoError(t, channel.PublishWithContext(t.Context(), "", "orders_dlq", false, false,
		amqp.Publishing{MessageId: "dead", DeliveryMode: amqp.Persistent}))
	proxy := services.NewProxy(t, rabbit)
	require.NoError(t, proxy.Cut())

	address := "127.0.0.1:" + strconv.Itoa(services.FreePorts(t, 1)[0])
	dir := t.TempDir()
	config := filepath.Join(dir, "redrive.yaml")
	require.NoError(t, os.WriteFile(config, []byte(configOf("sqlite://"+filepath.Join(dir, "dlq.db"),
		map[string]string{"rabbit": proxy.URL(t, rabbit)}, "rabbit/orders_dlq")+"server: {address: '"+address+"'}\n"), 0o600))
	var log bytes.Buffer // read when the server has ended
	server := exec.CommandContext(context.WithoutCancel(t.Context()), services.Program(t, "./cmd/redrive"), "serve",
		"--config", config)
	server.Stdout, server.Stderr = &log, &log
	require.NoError(t, server.Start())
	t.Cleanup(func() { _ = server.Process.Kill() }) // already ended, unless the test has failed
	health := func() (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/readyz", nil)
		require.NoError(t, err)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return 0, ""
		}
		defer response.Body.Close()
		var body bytes.Buffer
		_, err = body.ReadFrom(response.Body)
		require.NoError(t, err)
		return response.StatusCode, body.String()
	}
	await.True(t, func() bool {
		status, body := health()
		return status == http.StatusServiceUnavailable && strings.Contains(body, "broker rabbit is not reachable yet")
	})
	require.NoError(t, proxy.Heal())
	await.True(t, func() bool {
		status, body := health()
		return status == http.StatusOK && strings.Contains(body, `"collected":1`)
	})
	require.NoError(t, server.Process.Signal(syscall.SIGTERM))
	require.NoError(t, server.Wait())
	require.Contains(t, log.String(), "a broker is not reachable; it is tried again")
}

// A password that the broker refuses is reported when the server starts.
func TestServe_WrongPassword(t *testing.T) {
	t.Parallel()
	rabbit := withPassword(t, services.SharedRabbitMQ(t).VHost(t), "s3cret")
	r := redrive(t, configOf("sqlite://"+filepath.Join(t.TempDir(), "dlq.db"), map[string]string{"rabbit": rabbit},
		"rabbit/orders_dlq")+"server: {address: '127.0.0.1:0'}\n", "serve")
	require.Equal(t, 1, r.code, r.stderr)
	require.Contains(t, r.stderr, "broker rabbit: ")
	require.Contains(t, r.stderr, "403")
	require.NotContains(t, r.stderr, "s3cret")
}
