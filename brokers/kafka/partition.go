package kafka

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// partition is one partition of the topic while this member owns it, with the same partition of every retry topic.
//
// It ends in steps, for a rebalance and for a shutdown alike: nothing more is handed out and waits are broken off
// (ctx); running handlers finish; what they settled is committed; only then does the group give the partition to
// somebody else. Handlers that take longer than the grace are abandoned, and their messages come again.
type partition struct {
	sub *subscription
	id  int32

	ctx       context.Context // ends when the partition has to be given up
	stop      context.CancelFunc
	abandoned chan struct{} // closed when running handlers are no longer waited for
	idle      chan struct{} // closed when none runs any more

	lanes *lanes
	order *order // nil unless order=key

	mu     sync.Mutex
	points []point
	open   map[string]bool // retry topics that are being read
	closed bool
	pumps  sync.WaitGroup
}

func newPartition(sub *subscription, id int32) *partition {
	p := &partition{sub: sub, id: id, abandoned: make(chan struct{}), idle: make(chan struct{}), open: map[string]bool{}}
	p.ctx, p.stop = context.WithCancel(sub.closing)
	run := p.handle
	if sub.strict {
		p.order = newOrder(p)
		run = p.order.handle
	}
	p.lanes = newLanes(sub.cfg.Concurrency, run)
	return p
}

// consume owns the partition until claim ends.
func (p *partition) consume(sess sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	defer p.stop()
	go p.watch(sess, claim)

	main, err := p.begin(claim)
	if err != nil {
		close(p.idle)
		if p.ctx.Err() == nil {
			p.sub.log.Error("a partition cannot be consumed; joining again", "partition", p.id, "err", err)
		}
		return err
	}
	p.sub.adopt(p)
	p.read(main, claim.Messages())
	p.stop()
	p.giveUp(sess)
	return nil
}

// begin learns what is settled of the partition, and what holds its keys back.
func (p *partition) begin(claim sarama.ConsumerGroupClaim) (main *tracker, err error) {
	b := p.sub.b
	partitions, err := b.topics.including(p.ctx, b.source(p.sub.topic), p.id)
	if err != nil {
		return nil, err
	}
	at, err := p.sub.standing(p.ctx, claim)
	if err != nil {
		return nil, err
	}
	main = p.track(claim.Topic(), at)
	if p.order == nil {
		return main, nil
	}
	lot := b.parking(p.sub.topic, p.sub.cfg.Group, partitions)
	switch have, _, err := b.topics.ensure(p.ctx, lot); {
	case err != nil:
		return nil, err
	case have <= p.id:
		return nil, fmt.Errorf("topic %s (%s) has %d partitions and its source has %d: add partitions to it", lot.name, lot.purpose, have, partitions)
	}
	return main, p.order.restore()
}

// watch ends the partition at once when it is revoked, and then bounds the wait for its handlers. The channel of messages closes too, but only behind what sarama
// has fetched ahead, and all of that would be handled while the whole group waits for us.
func (p *partition) watch(sess sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) {
	revoked := make(chan struct{})
	if errs, ok := claim.(interface {
		Errors() <-chan *sarama.ConsumerError
	}); ok {
		go func() {
			for err := range errs.Errors() {
				p.sub.log.Warn("a partition cannot be read for now", "partition", p.id, "err", err.Err)
			}
			close(revoked)
		}()
	}
	select {
	case <-revoked:
	case <-sess.Context().Done():
	case <-p.ctx.Done():
	}
	p.stop()

	grace := time.NewTimer(p.sub.grace())
	defer grace.Stop()
	select {
	case <-p.idle:
	case <-grace.C:
		close(p.abandoned)
		p.sub.log.Warn("handlers did not finish in time; their messages come again", "partition", p.id)
	}
}

// track begins the account of what is settled of a topic's partition.
func (p *partition) track(topic string, at position) *tracker {
	t := newTracker(at, p.sub.window)
	p.account(topic, t)
	return t
}

func (p *partition) account(topic string, a account) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.points = append(p.points, point{topic: topic, partition: p.id, account: a})
}

// read hands the records of the topic itself to the lanes.
func (p *partition) read(main *tracker, records <-chan *sarama.ConsumerMessage) {
	for {
		var r *sarama.ConsumerMessage
		select {
		case r = <-records:
		case <-p.ctx.Done():
			return
		}
		if r == nil || p.ctx.Err() != nil {
			return
		}
		mark, ok := main.add(p.ctx, r.Offset)
		if !ok {
			return
		}
		if main.known(r.Offset) {
			main.settle(mark)
			continue
		}
		d := &delivery{record: r, tracker: main, mark: mark, origin: readOrigin(r, p.sub.topic, p.sub.cfg.Group, false)}
		if !p.lanes.take(p.ctx, d) {
			return
		}
	}
}

// handle runs in a lane.
func (p *partition) handle(d *delivery) {
	if p.deliver(d) {
		d.settle()
	}
}

// readTier begins to read a retry topic, unless it is being read or the partition is being given up.
func (p *partition) readTier(topic string, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.open[topic] || p.ctx.Err() != nil {
		return
	}
	p.open[topic] = true
	now := func() time.Time { return p.sub.brokerTime(p.ctx, topic, p.id) }
	p.pumps.Go(func() { (&pump{p: p, topic: topic, wait: wait, now: now}).run() })
}

// giveUp waits for what is running, for as long as watch allows, and commits it.
func (p *partition) giveUp(sess sarama.ConsumerGroupSession) {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()

	p.pumps.Wait()
	p.lanes.wait()
	close(p.idle)
	points := p.sub.disown(p)
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	if err := p.sub.commits.commit(ctx, sess, points, false); err != nil {
		p.sub.log.Warn("the last offsets were not committed; messages handled since come again", "partition", p.id, "err", err)
	}
}

// settled returns the account of every topic read.
func (p *partition) settled() []point {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]point(nil), p.points...)
}
