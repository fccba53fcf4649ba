package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A command that only uses brokers needs no store, and knows the mode, the group and the names of the service.
func TestTopology_NeedsNoStore(t *testing.T) {
	hermetic(t)
	file := filepath.Join(t.TempDir(), "redrive.yaml")
	require.NoError(t, os.WriteFile(file, []byte("brokers:\n  rabbit:\n    url: amqp://guest@127.0.0.1:1/?declare=adopt\n"+
		"    group: invoice-service\n    naming: {preset: service-bus, project: easyweek}\n"), 0o600))
	for _, args := range [][]string{{"topology", "plan", "rabbit", "invoice.*"}, {"explain", "rabbit", "invoice.*"}} {
		var out, faults bytes.Buffer
		require.Zero(t, run(append(args, "--config", file), strings.NewReader(""), &out, &faults), faults.String())
		require.Contains(t, out.String(), "easyweek.invoice-service")
		require.Contains(t, out.String(), "if missing; otherwise as it is")
	}
	var out, faults bytes.Buffer
	require.NotZero(t, run([]string{"list", "--config", file}, strings.NewReader(""), &out, &faults))
}

// The services' group is theirs, and not the collector's: a plan for redrive-collector would create a queue that gets
// a copy of every message and that nothing reads.
func TestTopology_GroupOfTheServices(t *testing.T) {
	hermetic(t)
	page, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	_, server, found := strings.Cut(string(page), "## The server")
	require.True(t, found)
	_, block, _ := strings.Cut(server, "```yaml\n")
	block, _, _ = strings.Cut(block, "```")
	file := filepath.Join(t.TempDir(), "redrive.yaml")
	require.NoError(t, os.WriteFile(file, []byte(block), 0o600))
	services := filepath.Join(t.TempDir(), "services.yaml")
	require.NoError(t, os.WriteFile(services, []byte("brokers:\n  rabbit: {url: amqp://h/, group: redrive-collector}\n"+
		"  bus: {url: 'amqp://h/?naming=service-bus&project=shop'}\n  mail: {url: 'amqp://h/?group=mail'}\n"+
		"  adapter: {url: 'watermill+kafka://h:1'}\n"), 0o600))
	const none = "--group"
	for _, c := range []struct {
		file, args, want string
		code             int
	}{
		{file, "rabbit orders", "queue    orders  ", exitOK},
		{file, "rabbit orders --group billing", "queue    orders.billing  ", exitOK},
		{file, "kafka orders", none, exitUsage},
		{file, "kafka orders --group billing", "topic orders.billing_dlq  ", exitOK},
		{file, "rabbit orders_dlq", "orders_dlq is a source of the collector", exitUsage},
		{file, "kafka orders payments.DLT --group x", "payments.DLT is a source of the collector", exitUsage},
		{services, "rabbit orders --group default", "queue    orders  ", exitOK},
		{services, "bus invoice.*", none, exitUsage},
		{services, "bus invoice.* --group mail", "queue    shop.mail  ", exitOK},
		{services, "mail orders", "queue    orders.mail  ", exitOK},
		{services, "mail orders --group billing", "queue    orders.billing  ", exitOK},
		{services, "adapter orders", none, exitUsage},
	} {
		for _, of := range []string{"topology plan", "explain"} {
			code, stdout, stderr := command(t, append(strings.Fields(of+" "+c.args), "--config", c.file)...)
			require.Equal(t, c.code, code, "%s %s: %s", of, c.args, stderr)
			require.Contains(t, stdout+stderr, c.want, "%s %s", of, c.args)
			require.NotContains(t, stdout+stderr, "redrive-collector", "%s %s", of, c.args)
		}
	}
}

// A broker without a topology of ours is refused before it is opened: a SQL queue would create its tables.
func TestTopology_BrokersWithout(t *testing.T) {
	hermetic(t)
	t.Chdir(t.TempDir())
	for _, url := range []string{
		"postgres://h/db", "sqlite:queue.db", "nats://127.0.0.1:1", "watermill+amqp://127.0.0.1:1/", "mem://", "gochannel://",
	} {
		for _, sub := range []string{"plan", "check", "apply"} {
			code, _, stderr := command(t, "topology", sub, "main", "orders", "--broker", "main="+url)
			require.Equal(t, exitUsage, code, "%s %s: %s", sub, url, stderr)
			require.Contains(t, stderr, "creates what a consumer needs when it subscribes", "%s %s", sub, url)
		}
	}
	require.NoFileExists(t, "queue.db")
}
