package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/examples/internal/demo"
)

// morning is the expected output, in any order of the two services.
const morning = `
T= 0.0 s  invoice-service  invoice.created INV-1  first  handled
T= 0.0 s  invoice-service  invoice.created INV-2  first  tax office: dial tcp: connection refused: again in 1s
T= 1.0 s  invoice-service  invoice.created INV-2  retry  tax office: dial tcp: connection refused: again in 5s
T= 6.0 s  invoice-service  invoice.created INV-2  last   tax office: dial tcp: connection refused: to easyweek.invoice-service.failed
T= 0.0 s  invoice-service  invoice.paid    INV-3  first  database: lock timeout: again in 1s
T= 1.0 s  invoice-service  invoice.paid    INV-3  retry  handled
T= 0.0 s  invoice-service  invoice.created INV-4  first  validation: INV-4 of -1 cents: skipped
T= 0.0 s  invoice-service  system.ping.1   bus           pong
T= 0.0 s  invoice-service  invoice.created INV-0         a debug message, looked at only
T= 0.0 s  mailer           invoice.created INV-1  first  handled
T= 0.0 s  mailer           invoice.created INV-2  first  handled
T= 0.0 s  mailer           invoice.paid    INV-3  first  handled
T= 0.0 s  mailer           invoice.created INV-4  first  handled
T= 0.0 s  mailer           user.created    U-1    first  smtp: 451 greylisted, try again: again in 0s
T= 0.0 s  mailer           user.created    U-1    retry  smtp: 451 greylisted, try again: again in 1s
T= 1.0 s  mailer           user.created    U-1    retry  handled
T= 0.0 s  mailer           system.ping.1   bus           pong
T= 0.0 s  mailer           invoice.created INV-0         a debug message, looked at only
`

// The whole morning runs in virtual time. The mailer gets each invoice event once, although the invoice service handles
// two of them several times.
func TestBus_Transcript(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, err := open(t.Context(), "mem://", "easyweek")
		require.NoError(t, err)
		var out bytes.Buffer
		ended, err := traffic(t.Context(), broker, newTranscript(&out, "easyweek", 1), slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		require.True(t, ended)

		printed := slices.DeleteFunc(strings.Split(out.String(), "\n"),
			func(s string) bool { return !strings.HasPrefix(s, "T=") })
		require.ElementsMatch(t, strings.Split(strings.TrimSpace(morning), "\n"), printed)
		require.Contains(t, out.String(), "invoice-service reads easyweek.invoice-service: [invoice.* system.#]")
		require.Regexp(t, `invoice-service\s+6\s+2\s+1\s+1\s+2\s+7`, out.String())
		require.Regexp(t, `mailer\s+7\s+5\s+0\s+0\s+2\s+7`, out.String())

		dead := broker.(*memory.Broker).Peek("easyweek.invoice-service.failed", "")
		require.Len(t, dead, 1)
		require.Equal(t, "3", dead[0].Metadata[envelope.KeyRetryCount])
		require.Equal(t, "tax office: dial tcp: connection refused", dead[0].Metadata[envelope.KeyConsumerError])
		require.Empty(t, dead[0].Metadata[envelope.KeyDelay])
		require.Empty(t, broker.(*memory.Broker).Peek("easyweek.mailer.failed", ""))
		require.NoError(t, broker.Close())
	})
}

// A handler that does not end in time is reported, not waited for.
func TestBus_OutOfPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, err := open(t.Context(), "mem://", "easyweek")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		var out bytes.Buffer
		ended, err := traffic(ctx, broker, newTranscript(&out, "easyweek", 1), slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		require.False(t, ended)
		require.Contains(t, out.String(), "DOES NOT BALANCE: 1 events have not ended")
		require.NoError(t, broker.Close())
	})
}

func TestBus_Run(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(t.Context(), []string{"-speed", "100", "-project", "tenant2"}, nil, &stdout, &stderr), stderr.String())
	require.Contains(t, stdout.String(), "to tenant2.invoice-service.failed")
	require.Zero(t, run(t.Context(), []string{"-h"}, nil, io.Discard, io.Discard))
}

func TestBus_BadInput(t *testing.T) {
	for name, tc := range map[string]struct {
		url  string
		args []string
		code int
		says string
	}{
		"impossible speed":   {"", []string{"-speed", "-1"}, demo.ExitUsage, "-speed must be positive"},
		"an argument":        {"", []string{"x"}, demo.ExitUsage, "no arguments"},
		"unknown flag":       {"", []string{"-fast"}, demo.ExitUsage, "-fast"},
		"unknown scheme":     {"gopher://me:secret@localhost", nil, demo.ExitFailed, `"gopher"`},
		"name with nonsense": {"", []string{"-project", ""}, demo.ExitFailed, "project"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("BROKER_URL", tc.url)
			var stdout, stderr bytes.Buffer
			require.Equal(t, tc.code, run(t.Context(), tc.args, nil, &stdout, &stderr))
			require.Contains(t, stderr.String(), tc.says)
			require.NotContains(t, stderr.String(), "secret")
		})
	}
}
