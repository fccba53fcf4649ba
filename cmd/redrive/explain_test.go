package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
)

// On Watermill's own adapters a retry waits in a second broker, and explain names the place there, or reports that
// there is none.
func TestExplain_WatermillsAdapters(t *testing.T) {
	billing := func(queue, retry string) consumerView {
		return consumerView{"orders", "billing", queue, "orders.billing." + retry, "orders.billing_dlq"}
	}
	for url, want := range map[string]consumerView{
		"watermill+amqp://localhost/?group=billing":    billing("orders.billing", "amqp_retries_{server}"),
		"watermill+kafka://localhost/?group=billing":   billing("orders", "kafka_retries_{server}"),
		"watermill+postgres://host/db?x-group=billing": billing("orders", "postgres_retries_{server}"),
		"gochannel://shop?group=billing":               billing("orders", "gochannel_retries_{server}"),
		"watermill+kafka://localhost/?delays-env=UNSET1": {
			"orders", "", "orders", "nowhere: UNSET1 is not set, so nothing can be delayed", "orders_dlq",
		},
	} {
		t.Setenv("REDRIVE_DELAYS_URL", "postgres://u:pw-secret@host/db")
		cfg := brokers.Config{URL: url}
		scheme, _, _ := strings.Cut(url, ":")
		require.True(t, onWatermill(scheme))
		driver, ok := brokers.Lookup(scheme)
		require.True(t, ok)
		resolved, err := cfg.Resolve(driver.Params())
		require.NoError(t, err)
		view := watermillView(&resolved, "orders", resolved.Naming.For("orders", resolved.Group))
		if _, has := resolved.Params["delays-env"]; has && want.Retry[:7] != "nowhere" {
			want.Retry += " of postgres://u:xxxxx@host/db"
		}
		require.Equal(t, want, view, url)
	}
	require.False(t, onWatermill("kafka"))
}

// A policy whose waits add up to centuries shows no negative time.
func TestExplain_LongestTimeline(t *testing.T) {
	hermetic(t)
	code, stdout, stderr := command(t, "explain", "--attempts", "70")
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stdout, "2562047h47m16.854775807s  dead letter")
	require.NotContains(t, stdout, "-2562047h")
}
