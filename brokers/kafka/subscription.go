package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/internal/wait"
)

// Join implements driver.Sharer: the parts are the partitions of the topic.
func (b *transport) Join(ctx context.Context, q driver.Queue, begin driver.Begin) (leave func(), err error) {
	patterns, _ := b.tierPatterns(q.Topic, q.Group) // checked when the broker was opened
	s := &subscription{
		b: b, q: q, dispatch: begin, tierPatterns: patterns,
		log:    b.log.With("topic", q.Topic, "group", q.Group),
		strict: q.Params.String("order") == "key",
		done:   make(chan struct{}), joined: make(chan struct{}),
		look: make(chan struct{}, 1), rejoin: make(chan error, 1),
		owned: map[int32]*partition{}, seen: map[string]tier{},
		commits: committer{topics: b.topics, group: q.Group}, finishPoll: func() {},
	}
	if !s.strict { // a member with order=key may have parked messages
		s.tierPatterns = append(s.tierPatterns, tierPattern{exact: b.parkingName(q.Topic, q.Group)})
	}
	s.closing, s.close = context.WithCancel(context.WithoutCancel(ctx))
	leave = func() {
		s.close()
		<-s.done
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.subscriptions, s)
	}
	if err = b.add(ctx, s); err == nil {
		err = s.connect(ctx)
	}
	if err != nil {
		close(s.done)
		leave()
		return nil, notReady(err)
	}
	go s.run() //nolint:gosec,contextcheck // G118: it outlives ctx and has its own contexts
	return leave, nil
}

// prepare creates the topic and the retry topics for short waits and for the configured delays, so that the first
// failure creates nothing. Others are created when they are needed.
func (b *transport) prepare(ctx context.Context, topic, group string, params brokers.Params) (map[string]tier, error) {
	partitions, _, err := b.topics.ensure(ctx, b.source(topic))
	if err != nil {
		return nil, err
	}
	retry := b.cfg.Naming.For(topic, group).Retry
	seen := map[string]tier{b.cfg.Naming.For(topic, "").Delayed(nowTier): {wait: nowTier}}
	waits := slices.Clone(grid[:3])
	for _, d := range b.cfg.Delays {
		waits = append(waits, b.tiers.pick(d, d))
	}
	for _, wait := range waits {
		seen[retry(wait)] = tier{wait: wait}
	}
	for name, t := range seen {
		if _, _, err := b.topics.ensure(ctx, b.tier(name, t.wait, partitions)); err != nil {
			return nil, err
		}
	}
	if params.String("order") == "key" {
		_, _, err = b.topics.ensure(ctx, b.parking(topic, group, partitions))
	}
	return seen, err
}

// Joined returns when every open subscription is a member of its group and reads its assigned partitions, which may be
// none. Subscribe does not wait for that: joining takes as long as the other members need to give up partitions, and a
// new group begins at the oldest record and misses nothing. With offset=newest, it receives the messages published
// after Joined returns. Call it before a service reports that it is ready.
func (b *Broker) Joined(ctx context.Context) error {
	b.t.mu.Lock()
	closed := b.t.closed
	open := slices.Collect(maps.Keys(b.t.subscriptions))
	b.t.mu.Unlock()
	if closed {
		return fmt.Errorf("kafka: join: %w", brokers.ErrClosed)
	}
	for _, s := range open {
		select {
		case <-s.joined:
		case <-s.done:
			return fmt.Errorf("kafka: join group %s on topic %s: %w", s.q.Group, s.q.Topic, brokers.ErrClosed)
		case <-ctx.Done():
			return fmt.Errorf("kafka: join group %s on topic %s: %w", s.q.Group, s.q.Topic, context.Cause(ctx))
		}
	}
	return nil
}

const (
	// commitTimeout bounds one commit, and leaveTimeout leaving the group.
	commitTimeout = 10 * time.Second
	leaveTimeout  = 5 * time.Second
	// refreshOffsets is how often positions are stored even if nothing moved. Kafka forgets the positions of topics that
	// no member subscribes to after offsets.retention.minutes (7 days), and ours does not subscribe to retry topics.
	refreshOffsets = time.Hour
	// lookEvery is how often a subscription looks for retry topics created by others.
	lookEvery = 30 * time.Second
	// healthy is how long a membership must last not to count as a failure.
	healthy = 10 * time.Second
)

// Pauses between attempts: shorter where only a leader may have changed, a cluster may not be ready, or the group would
// expel us.
var (
	retrying = wait.Backoff{First: 100 * time.Millisecond, Longest: 10 * time.Second}
	asking   = wait.Backoff{First: 25 * time.Millisecond, Longest: time.Second}
)

// subscription consumes one topic for one group as one member of it. Its client is for the topic itself; retry topics
// are read over connections shared by all subscriptions of the broker.
type subscription struct {
	b        *transport
	q        driver.Queue
	dispatch driver.Begin // dispatches the messages of a partition
	log      *slog.Logger

	tierPatterns []tierPattern // retry topics to read
	strict       bool

	closing context.Context // ends when the subscription has to drain
	close   context.CancelFunc
	done    chan struct{}

	client  atomic.Pointer[kgo.Client] // the member of the group
	commits committer
	// mayNotClean is set if the cluster does not let this user remove records.
	mayNotClean atomic.Bool
	mixed       sync.Map // names of the topics in which records of other consumers were found

	joined   chan struct{} // closed when the member first reads all its partitions
	joinOnce sync.Once

	look       chan struct{} // requests a look at the topics
	rejoin     chan error    // requests another member: the topic is gone, was recreated, or is not read
	mu         sync.Mutex
	id         topicID   // of the topic right before the client was created, which knows no earlier one
	first      topicInfo // the topic that was subscribed to: offset=newest is for its partitions only
	owned      map[int32]*partition
	finishPoll func()          // ends the client's last poll, and returns when its records are fed
	seen       map[string]tier // retry topics
}

// connect creates missing topics, and the client that becomes a member of the group. The client sticks to the topic
// that it finds, even if that is deleted and recreated, so the earliest one that it can find is recorded first.
func (s *subscription) connect(ctx context.Context) error {
	seen, err := s.b.prepare(ctx, s.q.Topic, s.q.Group, s.q.Params)
	if err != nil {
		return err
	}
	found, _ := s.b.topics.describe(ctx, []string{s.q.Topic}) // without an answer, begin records what it finds
	s.mu.Lock()
	maps.Copy(s.seen, seen)
	s.id = found[s.q.Topic].id
	if s.first.partitions == 0 {
		s.first = found[s.q.Topic]
	}
	s.mu.Unlock()
	common, err := clientOptions(s.b.cfg, s.b.seeds, s.b.user)
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(append(append(common, groupOptions(s.q.Params, s.q.Group, s.q.Topic)...),
		kgo.OnPartitionsAssigned(s.assigned),
		kgo.OnPartitionsRevoked(s.revoked),
		kgo.OnPartitionsLost(s.revoked),
		kgo.AdjustFetchOffsetsFn(s.begin),
		kgo.KeepRetryableFetchErrors(), // includes those of a deleted topic
	)...)
	if err != nil {
		return err
	}
	s.client.Store(client)
	return nil
}

// run is a member of the group until the subscription closes, and rejoins whenever that fails.
func (s *subscription) run() {
	defer close(s.done)
	background, end := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer running.Wait()
	defer end()
	running.Go(func() { s.keepLooking(background) })
	running.Go(func() { s.keepCommitting(background) })
	running.Go(func() {
		for sleep(background, cleanEvery) {
			s.clean(background)
		}
	})

	for failures := 1; ; failures++ {
		began := time.Now()
		err := s.consume()
		s.leave()
		if s.closing.Err() != nil {
			return
		}
		if time.Since(began) > healthy {
			failures = 1
		}
		s.log.Warn("joining the consumer group again", "err", err, "pause", retrying.After(failures))
		for ; ; failures++ {
			if !sleep(s.closing, retrying.After(failures)) {
				return
			}
			if err = s.renew(); err == nil {
				break
			}
			s.log.Warn("the topic cannot be consumed; trying again", "err", err, "pause", retrying.After(failures+1))
		}
	}
}

// renew creates another client.
func (s *subscription) renew() error {
	select {
	case why := <-s.rejoin:
		s.log.Debug("noticed twice", "err", why)
	default:
	}
	s.b.topics.forget(s.q.Topic)
	_ = s.b.topics.check(s.closing) // forgets other deleted topics; later calls report its errors
	return s.connect(s.closing)
}

// consume passes fetched records to the partitions, until the subscription closes or needs another client.
func (s *subscription) consume() error {
	client := s.client.Load()
	ctx, cancel := context.WithCancel(s.closing)
	defer cancel()
	renewed := make(chan error)
	go func() {
		select {
		case why := <-s.rejoin:
			if errors.Is(why, errUnread) {
				sleep(ctx, healthy) // the other partitions are read
			}
			cancel()
			renewed <- why
		case <-ctx.Done():
			renewed <- context.Cause(ctx)
		}
	}()
	for ctx.Err() == nil {
		s.poll(ctx, client)
	}
	return <-renewed
}

// poll passes fetched records to the partitions.
func (s *subscription) poll(ctx context.Context, client *kgo.Client) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	fed := make(chan struct{})
	defer close(fed)
	s.mu.Lock()
	s.finishPoll = func() { end(); <-fed }
	s.mu.Unlock()
	fetches := client.PollFetches(ctx)
	fetches.EachError(s.refused)
	fetches.EachPartition(func(f kgo.FetchTopicPartition) {
		s.mu.Lock()
		p := s.owned[f.Partition]
		s.mu.Unlock()
		if p != nil {
			p.feed(f.FetchPartition)
		}
	})
}

// refused examines a fetch error. The client itself retries.
func (s *subscription) refused(_ string, partition int32, err error) {
	var session *kgo.ErrGroupSession
	s.mu.Lock()
	p := s.owned[partition]
	s.mu.Unlock()
	pauses := asking
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, kgo.ErrClientClosed):
		return
	case errors.As(err, &session):
		s.log.Warn("consumer group session ended; joining again", "err", session.Err)
		return
	case p != nil && p.isUnread():
		s.renewLater(fmt.Errorf("%w: partition %d: %w", errUnread, partition, err))
		return
	case isGone(err):
		s.findTiers() // the topic may be gone, or only its leader
	case temporary(err):
		s.log.Debug("a partition cannot be read for now", "partition", partition, "err", err)
	default:
		s.log.Warn("a partition cannot be read for now", "partition", partition, "err", err)
		pauses = retrying
	}
	if p != nil {
		p.refused(pauses)
	}
}

// errUnread means that the coordinator has refused the group's position on a partition. The client does not ask again,
// and reads only the others.
var errUnread = errors.New("the position of the group is not known")

// isUnread reports whether the client has the partition, but no position from which to read it.
func (p *partition) isUnread() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.begun && !p.closed
}

// leave gives up all partitions while the client keeps up its membership, and then leaves the group.
func (s *subscription) leave() {
	endAll(s.partitions())
	s.clean(context.Background())
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	client := s.client.Load()
	if err := client.LeaveGroupContext(ctx); err != nil {
		s.log.Debug("leave consumer group", "err", err)
	}
	client.Close()
}

func (s *subscription) hasJoined() { s.joinOnce.Do(func() { close(s.joined) }) }

// member identifies the committing member.
func (s *subscription) member() (id string, generation int32) {
	return s.client.Load().GroupMetadata()
}

// keepCommitting commits settled records, at least every commit-interval.
func (s *subscription) keepCommitting(ctx context.Context) {
	tick := time.NewTicker(s.q.Params.Duration("commit-interval"))
	defer tick.Stop()
	refreshed := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		all := time.Since(refreshed) > refreshOffsets
		if all {
			refreshed = time.Now()
		}
		within, cancel := context.WithTimeout(ctx, commitTimeout)
		err := s.commits.commit(within, s.member, s.points, all)
		cancel()
		switch {
		case err == nil || ctx.Err() != nil:
		case isGone(err), errors.Is(err, errFenced): // the client, or the reader of the retry topic, notices and logs it too
		default:
			s.log.Warn("offsets were not committed; trying again", "err", err)
		}
	}
}

// points are the accounts of all partitions currently owned.
func (s *subscription) points() []point {
	var points []point
	for _, p := range s.partitions() {
		points = append(points, p.settled()...)
	}
	return points
}

// inFlight is how many deliveries of a partition may be in flight: deliveries that wait behind another of their key
// must not keep the others from running.
func (s *subscription) inFlight() int {
	if s.strict || s.q.Concurrency == 1 { // no delivery in flight waits for its turn
		return s.q.Concurrency
	}
	return max(handedAhead, 8*s.q.Concurrency)
}

// window is how many records of a partition there may be from the oldest unsettled one on: it bounds the memory for
// those that wait behind others of their key, and what a client that ignores our notes would handle again.
func (s *subscription) window() int { return max(1000, s.inFlight()) }

// grace is how long running handlers may take when a partition is given up: the whole drain at shutdown, and at a
// rebalance less than the time after which the group expels us.
func (s *subscription) grace() time.Duration {
	limit := s.q.DrainTimeout
	if s.closing.Err() == nil {
		limit = min(limit, s.q.Params.Duration("rebalance-timeout")*4/5)
	}
	return limit
}
