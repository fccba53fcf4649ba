package services

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/redrive-go/redrive/integration/await"
)

// Proxy is a TCP proxy in this process that fails on demand. Its methods are safe for concurrent use.
type Proxy struct {
	// Addr is the host:port to connect to. Cut and Heal do not change it.
	Addr string

	toxi *toxiproxy.Proxy
}

// NewProxy starts a proxy for the test in front of upstream, a host:port or a URL.
func NewProxy(t testing.TB, upstream string) *Proxy {
	t.Helper()
	p, err := StartProxy(upstream)
	Need(t, err)
	t.Cleanup(func() { _ = p.Cut() })
	return p
}

// StartProxy starts a proxy in front of upstream, a host:port or a URL. The caller must cut it at the end.
func StartProxy(upstream string) (*Proxy, error) {
	if u, err := url.Parse(upstream); err == nil && u.Host != "" {
		upstream = u.Host
	}
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	addr := loopback(ports[0])
	api := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop()) // never listens
	p := &Proxy{Addr: addr, toxi: toxiproxy.NewProxy(api, "proxy", addr, upstream)}
	return p, p.Heal()
}

// URL returns the URL u of the upstream with the proxy's address in it.
func (p *Proxy) URL(t testing.TB, u string) string {
	t.Helper()
	parsed, err := parseURL(u)
	Need(t, err)
	parsed.Host = p.Addr
	return parsed.String()
}

// Cut closes every connection and refuses new ones until Heal. Without a proxy it does nothing.
func (p *Proxy) Cut() error {
	if p != nil {
		p.toxi.Stop()
	}
	return nil
}

// Heal accepts connections again after a Cut and undoes Delay, Freeze and LoseAnswers.
func (p *Proxy) Heal() error {
	p.toxi.Toxics.ResetToxics(context.Background())
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	// A child of this process that was forked before Cut and has not called exec yet still holds the listening socket.
	err := poll(ctx, func() error {
		err := p.toxi.Start()
		if err != nil && !errors.Is(err, syscall.EADDRINUSE) {
			return finalError{err}
		}
		return err
	})
	if err != nil && !errors.Is(err, toxiproxy.ErrProxyAlreadyStarted) {
		return fmt.Errorf("services: proxy: %w", err)
	}
	return nil
}

// Flap closes every connection and accepts new ones at once.
func (p *Proxy) Flap() error { return errors.Join(p.Cut(), p.Heal()) }

// Delay delays every response by d.
func (p *Proxy) Delay(d time.Duration) error {
	return p.add("latency", "downstream", map[string]any{"latency": d.Milliseconds()})
}

// Freeze stops all data in both directions while the connections remain open, like a broken network.
func (p *Proxy) Freeze() error {
	return errors.Join(p.add("timeout", "upstream", map[string]any{"timeout": 0}), p.LoseAnswers())
}

// LoseAnswers forwards requests and discards the responses, so the upstream does the work but no client learns of it.
func (p *Proxy) LoseAnswers() error {
	return p.add("timeout", "downstream", map[string]any{"timeout": 0})
}

func (p *Proxy) add(kind, stream string, attributes map[string]any) error {
	toxic, err := json.Marshal(map[string]any{"type": kind, "stream": stream, "attributes": attributes})
	if err != nil {
		return err
	}
	if _, err := p.toxi.Toxics.AddToxicJson(strings.NewReader(string(toxic))); err != nil {
		return fmt.Errorf("services: proxy: %s: %w", kind, err)
	}
	return nil
}
