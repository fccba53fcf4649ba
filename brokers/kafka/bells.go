package kafka

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// bells tells those who have read a retry topic to its end when there is more. Records of this process ring by themselves;
// for those of others one request a broker waits for all topics together, so that an idle topic costs nothing of its
// own. What rings is read over another connection: there, nothing waits behind a request that waits. It is safe for
// concurrent use.
type bells struct {
	client sarama.Client

	open    context.Context // ends with close
	end     context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	waiting  map[place]map[*listener]struct{}
	arrivals int            // of listeners, ever
	asking   map[int32]bool // brokers with a goroutine that asks
}

// place is a partition of a topic.
type place struct {
	topic     string
	partition int32
}

// listener waits for a record at an offset.
type listener struct {
	offset int64
	rung   chan struct{}
}

// ringWait is how long a broker lets a request wait: also how long a newcomer may have to until the next one takes it in.
// The shortest wait in a retry topic is as long, so that nothing is late by it.
const ringWait = nowTier

func newBells(client sarama.Client) *bells {
	b := &bells{client: client, waiting: map[place]map[*listener]struct{}{}, asking: map[int32]bool{}}
	b.open, b.end = context.WithCancel(context.Background())
	return b
}

// close ends the connection. Nobody may wait any more.
func (b *bells) close() {
	b.end()
	_ = b.client.Close()
	b.running.Wait()
}

// wait returns true when the partition may have a record at the offset or behind it, and false when ctx ends first.
func (b *bells) wait(ctx context.Context, at place, offset int64) bool {
	leader, err := b.leader(at)
	if err != nil {
		return sleep(ctx, minPause) // whoever reads next says why
	}
	l := &listener{offset, make(chan struct{})}
	b.mu.Lock()
	if b.waiting[at] == nil {
		b.waiting[at] = map[*listener]struct{}{}
	}
	b.waiting[at][l] = struct{}{}
	b.arrivals++
	b.askAt(leader)
	b.mu.Unlock()
	select {
	case <-l.rung:
		return true
	case <-ctx.Done():
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.waiting[at], l)
		if len(b.waiting[at]) == 0 {
			delete(b.waiting, at)
		}
		return false
	}
}

// ring wakes those who wait for a partition.
func (b *bells) ring(at place) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ringAll(at)
}

// ringAll is ring for those who hold mu.
func (b *bells) ringAll(at place) {
	for l := range b.waiting[at] {
		close(l.rung)
	}
	delete(b.waiting, at)
}

// keepAsking asks one broker for news as long as anybody waits for a partition that it leads.
func (b *bells) keepAsking(leader int32) {
	for {
		asked, more := b.collect(leader)
		if !more {
			return
		}
		if len(asked) == 0 {
			continue
		}
		answer, err := b.ask(leader, asked)
		b.mu.Lock()
		for at, offset := range asked {
			if err != nil {
				b.ringAll(at) // whoever reads it finds the new leader, or says what is wrong
				continue
			}
			block := answer.GetBlock(at.topic, at.partition)
			if block == nil || block.Err != sarama.ErrNoError || block.HighWaterMarkOffset > offset {
				b.ringAll(at)
			}
		}
		b.mu.Unlock()
		if err != nil {
			sleep(b.open, minPause)
		}
	}
}

// collect returns the partitions of a broker that somebody waits for, with the lowest offset of each. No more ends the
// goroutine that asks.
func (b *bells) collect(leader int32) (asked map[place]int64, more bool) {
	b.mu.Lock()
	known := b.arrivals
	asked = make(map[place]int64, len(b.waiting))
	for at, listeners := range b.waiting {
		for l := range listeners {
			if lowest, ok := asked[at]; !ok || l.offset < lowest {
				asked[at] = l.offset
			}
		}
	}
	b.mu.Unlock()

	elsewhere := map[place]int32{}
	for at := range asked { // not locked: it may have to ask the cluster
		switch id, err := b.leader(at); {
		case err != nil:
			elsewhere[at] = nobody
		case id != leader:
			elsewhere[at] = id
		}
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	for at, id := range elsewhere {
		delete(asked, at)
		if id == nobody {
			b.ringAll(at)
		} else {
			b.askAt(id) // it has moved
		}
	}
	if len(asked) == 0 && b.arrivals == known {
		delete(b.asking, leader)
		return nil, false
	}
	return asked, true
}

// nobody leads a partition while its cluster chooses.
const nobody = -1

func (b *bells) leader(at place) (int32, error) {
	broker, err := b.client.Leader(at.topic, at.partition)
	if err != nil {
		return nobody, err
	}
	return broker.ID(), nil
}

// askAt sees to it that a broker is asked. The caller holds mu.
func (b *bells) askAt(leader int32) {
	if !b.asking[leader] {
		b.asking[leader] = true
		b.running.Go(func() { b.keepAsking(leader) })
	}
}

func (b *bells) ask(leader int32, asked map[place]int64) (*sarama.FetchResponse, error) {
	broker, err := b.client.Broker(leader)
	if err != nil {
		return nil, err
	}
	if err := broker.Open(b.client.Config()); err != nil && !errors.Is(err, sarama.ErrAlreadyConnected) {
		return nil, err
	}
	req := newFetch(1) // where a partition ends is wanted, not what it holds
	req.MaxWaitTime = int32(ringWait / time.Millisecond)
	for at, offset := range asked {
		req.AddBlock(at.topic, at.partition, max(offset, 0), 1, -1)
	}
	answer, err := broker.Fetch(req)
	if err != nil {
		_ = broker.Close()
		_ = b.client.RefreshMetadata()
	}
	return answer, err
}
