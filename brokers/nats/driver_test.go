package nats_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	_ "github.com/redrive-go/redrive/brokers/nats"
)

// A server that accepts connections and says nothing once used up the whole time for opening the broker, so that the
// others of its cluster were not tried.
func TestOpen_TriesTheServersAfterASilentOne(t *testing.T) {
	t.Parallel()
	listen := func() (address string, dialed chan time.Time) {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		dialed = make(chan time.Time, 10)
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				dialed <- time.Now()
				defer conn.Close()
			}
		}()
		return l.Addr().String(), dialed
	}
	one, first := listen()
	two, second := listen()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	_, err := brokers.Open(ctx, "nats://"+one+","+two)
	require.Error(t, err)
	deadline, _ := ctx.Deadline()
	for _, dialed := range []chan time.Time{first, second} {
		select {
		case at := <-dialed:
			require.True(t, at.Before(deadline))
		case <-time.After(time.Minute):
			require.Fail(t, "a server was not tried")
		}
	}
}

// A server that was full counted as a wrong configuration, which ends a service for good. One whose limit leaves no
// room for a failure refused every message later.
func TestOpen_WhatTheServerSays(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		info, answer string
		temporary    bool
		want         string
	}{
		"Full":          {"{}", "-ERR 'maximum connections exceeded'", true, "maximum connections"},
		"AccountFull":   {"{}", "-ERR 'maximum account active connections exceeded'", true, "maximum account"},
		"Stopping":      {"{}", "-ERR 'Server Shutdown'", true, "Server Shutdown"},
		"Slow":          {"{}", "-ERR 'Authentication Timeout'", true, "Authentication Timeout"},
		"WrongPassword": {"{}", "-ERR 'Authorization Violation'", false, "Authorization Violation"},
		"Expired":       {"{}", "-ERR 'User Authentication Expired'", false, "Authentication Expired"},
		"Revoked":       {"{}", "-ERR 'User Authentication Revoked'", false, "Authentication Revoked"},
		"SmallPayload":  {`{"max_payload":24576}`, "PONG", false, "max_payload is 24576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, l.Close()) })
			go func() {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				_, _ = io.WriteString(conn, "INFO "+c.info+"\r\n")
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					if lines.Text() == "PING" {
						_, _ = io.WriteString(conn, c.answer+"\r\n")
					}
				}
			}()
			_, err = brokers.Open(t.Context(), "nats://"+l.Addr().String())
			require.ErrorContains(t, err, c.want)
			require.Equal(t, c.temporary, errors.Is(err, driver.ErrTemporary))
		})
	}
}
