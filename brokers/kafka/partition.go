package kafka

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/internal/wait"
)

// partition is one partition of the topic while this member owns it, and the same partition of every retry topic.
//
// It ends in steps, for a rebalance as for a shutdown: nothing more is delivered and waits are interrupted (ctx);
// running handlers finish; their settlements are committed; only then does the group assign the partition to another
// member. Handlers that exceed the grace period are abandoned, and their messages are redelivered.
type partition struct {
	sub    *subscription
	id     int32
	client *kgo.Client // that fetches it
	topic  topicID
	ends   map[topicPartition]int64 // of topics for first deliveries when the group began, with offset=newest

	ctx   context.Context // ends when the partition has to be given up
	stop  context.CancelFunc
	due   chan *delivery // to be delivered
	ended chan struct{}  // closed when everything that can be is settled
	done  chan struct{}  // closed when everything is committed

	order *keyOrder      // nil unless order=key
	keyed *keyedExecutor // with order

	mu      sync.Mutex
	begun   bool
	ready   bool // retry topics may be read: the blocked keys are known
	points  []point
	open    map[string]*retryReader
	closed  bool
	readers sync.WaitGroup // of retry topics

	fetched []kgo.FetchPartition // not read yet
	paused  bool                 // the client does not fetch the partition: enough is waiting, or it had an error
	more    chan struct{}        // a token if fetched is not empty

	failures int // in a row, of fetches
	failed   time.Time
}

// aheadLimit is how many answers of the broker may wait to be read. The client keeps fetching up to this.
const aheadLimit = 2

func newPartition(sub *subscription, id int32, client *kgo.Client) *partition {
	p := &partition{
		sub: sub, id: id, client: client, open: map[string]*retryReader{}, more: make(chan struct{}, 1),
		due: make(chan *delivery, handedAhead), ended: make(chan struct{}), done: make(chan struct{}),
	}
	p.ctx, p.stop = context.WithCancel(sub.closing)
	if sub.strict {
		p.order = newKeyOrder(p)
		n := sub.q.Concurrency
		p.keyed = &keyedExecutor{n: n, run: p.order.handle, slots: make(chan struct{}, n), busy: map[string][]*delivery{}}
	}
	return p
}

// begin starts handling the partition from a position on, unless that was already done or it has been given up.
func (p *partition) begin(at position, of topicID, ends map[topicPartition]int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.begun || p.closed {
		return
	}
	p.begun, p.topic, p.ends = true, of, ends
	go p.run(at)
}

// endAll gives partitions up, together, and returns when everything that can be is settled.
func endAll(partitions []*partition) {
	for _, p := range partitions {
		p.stop()
	}
	for _, p := range partitions {
		p.end()
	}
}

// end gives the partition up, forgets it, and returns when everything that can be is settled.
func (p *partition) end() {
	p.stop()
	p.mu.Lock()
	begun := p.begun
	p.closed = true
	p.mu.Unlock()
	if begun {
		<-p.done
	}
	p.sub.mu.Lock()
	defer p.sub.mu.Unlock()
	if p.sub.owned[p.id] == p {
		delete(p.sub.owned, p.id)
	}
}

// run handles the partition until it has to be given up.
func (p *partition) run(at position) {
	defer close(p.done)
	defer p.stop()

	main := newTracker(at, p.sub.window())
	p.account(p.sub.q.Topic, p.topic, main)
	if p.order == nil || p.restoreOrder() {
		p.mu.Lock()
		p.ready = true
		p.mu.Unlock()
		end := p.sub.dispatch(p, p.sub.inFlight())
		go func() {
			<-p.ctx.Done()
			end(p.sub.grace())
			close(p.ended)
		}()
		for name, t := range p.sub.tiers() {
			p.readTier(name, t)
		}
		p.read(main)
	} else {
		close(p.ended)
	}
	p.stop()
	p.giveUp()
}

// restoreOrder determines the blocked keys of the partition. It reports false if the partition is given up first.
func (p *partition) restoreOrder() bool {
	err := p.order.restore()
	for n := 1; err != nil && p.ctx.Err() == nil; n++ {
		p.sub.log.Error("the order of keys cannot be restored, so nothing of the partition is handled; trying again",
			"partition", p.id, "err", err)
		if sleep(p.ctx, retrying.After(n)) {
			err = p.order.restore()
		}
	}
	return err == nil
}

func (p *partition) account(topic string, id topicID, a *tracker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := topicPartition{topic, p.id}
	p.points = slices.DeleteFunc(p.points, func(have point) bool { return have.topicPartition == at })
	p.points = append(p.points, point{at, a, id})
}

// feed takes fetched records from the client, and keeps it from fetching more than can be read.
func (p *partition) feed(f kgo.FetchPartition) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.begun || len(f.Records) == 0 { // polled before it was given up and assigned again: it is read from its position
		return
	}
	p.fetched = append(p.fetched, f)
	p.failures = 0
	if len(p.fetched) >= aheadLimit {
		p.pause()
	}
	wait.Signal(p.more)
}

// next returns fetched records in order, or reports false if the partition has to be given up.
func (p *partition) next() (kgo.FetchPartition, bool) {
	for {
		p.mu.Lock()
		if len(p.fetched) > 0 && p.ctx.Err() == nil {
			f := p.fetched[0]
			p.fetched = slices.Delete(p.fetched, 0, 1)
			p.resume()
			p.mu.Unlock()
			return f, true
		}
		p.mu.Unlock()
		select {
		case <-p.more:
		case <-p.ctx.Done():
			return kgo.FetchPartition{}, false
		}
	}
}

// refused keeps the client from fetching the partition for a while after an error: on its own it tries again at once.
func (p *partition) refused(pauses wait.Backoff) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.failed) > 2*retrying.Longest {
		p.failures = 0
	}
	p.failures, p.failed = p.failures+1, time.Now()
	p.pause()
	time.AfterFunc(pauses.After(p.failures), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.resume()
	})
}

// pause keeps the client from fetching. The caller holds mu.
func (p *partition) pause() {
	if !p.paused && !p.closed {
		p.paused = true
		p.client.PauseFetchPartitions(map[string][]int32{p.sub.q.Topic: {p.id}})
	}
}

// resume lets the client fetch again, unless enough is waiting. The caller holds mu.
func (p *partition) resume() {
	if p.paused && len(p.fetched) < aheadLimit {
		p.paused = false
		p.client.ResumeFetchPartitions(map[string][]int32{p.sub.q.Topic: {p.id}})
	}
}

// read passes the records of the topic itself to the handlers.
func (p *partition) read(main *tracker) {
	incarnation := p.topic.incarnation(p.sub.b.topics.cluster())
	for {
		f, ok := p.next()
		if !ok {
			return
		}
		if p.startedOver(main, f) {
			main = newTracker(position{offset: -1}, p.sub.window())
			p.account(p.sub.q.Topic, p.topic, main)
		}
		for _, r := range f.Records {
			if !main.add(p.ctx, r) {
				return
			}
			if main.known(r) || r.Attrs.IsControl() {
				main.settle(r.Offset)
				continue
			}
			d := &delivery{record: r, tracker: main, origin: p.sub.origin(r, incarnation)}
			if !p.submit(d) {
				return
			}
		}
	}
}

// startedOver reports whether the partition continues below the last read offset. It logs that, and records that were
// removed from the partition before they were handled.
func (p *partition) startedOver(main *tracker, f kgo.FetchPartition) bool {
	next, first := main.expects(), f.Records[0].Offset
	switch {
	case next < 0: // it is not known
	case first < next:
		p.sub.log.Warn("the partition has lost its end or starts over: its records are handled from an earlier one on",
			"partition", p.id, "offset", next, "earlier", first)
		return true
	case f.LogStartOffset > next:
		p.sub.log.Warn("records were removed from the topic before they were handled; continuing at the oldest",
			"partition", p.id, "gone", f.LogStartOffset-next, "offset", next, "oldest", f.LogStartOffset)
	}
	return false
}

// readTier begins to read a retry topic, unless it is already being read or the partition is being given up. If the
// topic was recreated, its reader is notified.
func (p *partition) readTier(topic string, t tier) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !p.ready || p.ctx.Err() != nil {
		return
	}
	if reader := p.open[topic]; reader != nil {
		if t.id.differs(reader.id) {
			reader.lookAgain.Store(true)
			p.sub.b.news.arrived(topicPartition{topic, p.id})
		}
		if p.id < t.partitions {
			wait.Signal(reader.grown)
		}
		return
	}
	reader := newRetryReader(p, topic, t.wait)
	p.open[topic] = reader
	p.readers.Go(reader.run)
}

// giveUp waits for running deliveries, for as long as watch allows, and commits them.
func (p *partition) giveUp() {
	p.mu.Lock()
	p.closed = true
	p.fetched = nil
	p.resume() // this client may become the partition's next owner
	p.mu.Unlock()

	p.readers.Wait()
	if p.order != nil {
		p.keyed.wait()
	}
	<-p.ended
	points := p.settled()
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	if err := p.sub.commits.last(ctx, p.sub.member, points); err != nil {
		p.sub.log.Warn("the last offsets were not committed; messages handled since are redelivered", "partition", p.id, "err",
			err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.points = nil // from here on the next owner commits
}

// settled returns the account of every topic that is read.
func (p *partition) settled() []point {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.points)
}
