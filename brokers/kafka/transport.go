package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

var (
	_ driver.Transport     = (*transport)(nil)
	_ driver.Addresser     = (*transport)(nil)
	_ driver.Sharer        = (*transport)(nil)
	_ driver.ReaderCounter = (*transport)(nil)
)

// Capabilities implements driver.Transport.
func (b *transport) Capabilities() brokers.Capabilities {
	return brokers.Capabilities{
		Scheme: Scheme, Durable: true, Ordered: true, Groups: true,
		MaxDelay: envelope.MaxDelay, DelayTolerance: 250 * time.Millisecond,
		MaxMessageBytes: b.cfg.Params.Bytes("max-message-bytes"),
	}
}

// Traits implements driver.Transport.
func (b *transport) Traits() driver.Traits {
	return driver.Traits{
		Name: Scheme, Prompt: true, SettleLocal: true, Ordered: true, StablePosition: true, NeedsGroup: true, OwnRoom: true,
	}
}

// Ping asks the cluster for the topics that this broker uses. A topic that was deleted is an error: once if auto-create
// allows to recreate it at its next use, otherwise as long as it is missing.
func (b *transport) Ping(ctx context.Context) error {
	if err := b.topics.check(ctx); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("kafka: ping: %w", classify(err))
	}
	return nil
}

// Close implements driver.Transport. It waits for the answers to pending publishes.
func (b *transport) Close(context.Context) error {
	if b.news != nil {
		b.news.close()
	}
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	for _, p := range []*producer{b.out, b.waits} {
		if p != nil {
			p.close() //nolint:contextcheck // bounded by the publish timeout
		}
	}
	return nil
}

// Declare implements driver.Transport.
func (b *transport) Declare(ctx context.Context, q driver.Queue) error {
	_, _, err := b.prepare(ctx, q.Topic, q.Group, q.Params)
	return err
}

// Receive implements driver.Transport. The engine calls Join instead.
func (b *transport) Receive(context.Context, driver.Queue) (driver.Stream, error) {
	return nil, errors.ErrUnsupported
}

// RedriveTo implements driver.Addresser.
func (b *transport) RedriveTo(to *driver.Destination) string {
	return b.retryName(to.Topic, to.Consumer, nowTier)
}

// Readers implements driver.ReaderCounter: it counts the members of the group that have joined for the topic, which
// also read its retry topics.
func (b *transport) Readers(ctx context.Context, to *driver.Destination) (int, error) {
	groups, err := b.topics.admin.DescribeGroups(ctx, to.Consumer)
	if err == nil {
		err = groups.Error()
	}
	if errors.Is(err, kerr.GroupIDNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n := 0
	for _, g := range groups {
		for i := range g.Members {
			if joined, ok := g.Members[i].Join.AsConsumer(); ok && slices.Contains(joined.Topics, to.Topic) {
				n++
			}
		}
	}
	return n, nil
}
