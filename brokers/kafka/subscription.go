package kafka

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
)

const (
	// commitTimeout bounds the commits of one moment.
	commitTimeout = 10 * time.Second
	// refreshOffsets is how often positions are stored although nothing moved. Kafka forgets the positions of topics
	// that no member subscribes to after offsets.retention.minutes (7 days), and ours does not subscribe to retry topics.
	refreshOffsets = time.Hour
	// lookEvery is how often a subscription looks for retry topics that others have made.
	lookEvery = 30 * time.Second
	// healthy is how long a session has to last to count as one, and not as a failure.
	healthy = 10 * time.Second
)

// subscription consumes one topic for one group as one member of it.
type subscription struct {
	b     *Broker
	cfg   brokers.SubscriberConfig
	topic string
	log   *slog.Logger

	names     brokers.Names
	kinds     []named // retry topics to read
	strict    bool
	window    int
	nackPause time.Duration

	out      chan *message.Message
	closing  context.Context // ends when the subscription has to drain
	close    context.CancelFunc
	handlers context.Context // parent of the messages' contexts; ends when all is drained
	drained  context.CancelFunc
	done     chan struct{}

	client  sarama.Client // of the group
	reader  sarama.Client // of the retry topics
	bells   *bells
	commits committer

	joined   chan struct{} // closed when the first session reads all its partitions
	toJoin   atomic.Int32  // partitions of the first session that are not read yet
	joinOnce sync.Once

	look chan struct{} // asks for lookForTiers
	mu   sync.Mutex
	own  map[int32]*partition
	seen map[string]time.Duration // retry topics
}

// run is a member of the group until the subscription closes, and becomes one again whenever it is thrown out.
func (s *subscription) run() {
	defer close(s.done)
	defer close(s.out)
	defer s.drained()
	defer s.disconnect()
	var background sync.WaitGroup
	defer background.Wait()
	background.Go(s.keepLooking)

	for pause := minPause; s.closing.Err() == nil; {
		began := time.Now()
		err := s.join()
		if s.closing.Err() != nil {
			return
		}
		if time.Since(began) > healthy {
			pause = minPause
		}
		s.log.Warn("consumer group session ended; joining again", "err", err, "pause", pause)
		if !sleep(s.closing, pause) {
			return
		}
		pause = min(2*pause, maxPause)
	}
}

const (
	minPause = 100 * time.Millisecond
	maxPause = 10 * time.Second
)

// join is one membership. The group client is made anew each time: sarama's does not recover from every error.
func (s *subscription) join() error {
	group, err := sarama.NewConsumerGroupFromClient(s.cfg.Group, s.client)
	if err != nil {
		return err
	}
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		for err := range group.Errors() {
			s.log.Debug("consumer group", "err", err)
		}
	}()
	defer func() {
		if err := group.Close(); err != nil {
			s.log.Debug("leave consumer group", "err", err)
		}
		<-reported
	}()
	for s.closing.Err() == nil {
		began := time.Now()
		if err := group.Consume(s.closing, []string{s.topic}, s); err != nil {
			return err
		}
		if time.Since(began) < minPause {
			return errors.New("the session ended at once")
		}
	}
	return nil
}

// Setup begins to commit for a session.
func (s *subscription) Setup(sess sarama.ConsumerGroupSession) error {
	s.toJoin.Store(int32(len(sess.Claims()[s.topic]))) //nolint:gosec // G115: Kafka counts partitions in 32 bits
	if len(sess.Claims()[s.topic]) == 0 {
		s.hasJoined()
	}
	s.lookForTiers()
	go s.keepCommitting(sess)
	return nil
}

// Cleanup has nothing to do: every partition has committed when it was given up.
func (s *subscription) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// ConsumeClaim owns a partition until it is revoked.
func (s *subscription) ConsumeClaim(sess sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	if s.toJoin.Add(-1) <= 0 {
		s.hasJoined()
	}
	return newPartition(s, claim.Partition()).consume(sess, claim)
}

func (s *subscription) hasJoined() { s.joinOnce.Do(func() { close(s.joined) }) }

// keepCommitting stores what is settled, at least every commit-interval, until the session ends.
func (s *subscription) keepCommitting(sess sarama.ConsumerGroupSession) {
	tick := time.NewTicker(s.cfg.Params.Duration("commit-interval"))
	defer tick.Stop()
	refreshed := time.Now()
	for {
		select {
		case <-sess.Context().Done():
			return
		case <-tick.C:
		}
		all := time.Since(refreshed) > refreshOffsets
		if all {
			refreshed = time.Now()
		}
		s.commitNow(sess, all)
	}
}

func (s *subscription) commitNow(sess sarama.ConsumerGroupSession, all bool) {
	var points []point
	for _, p := range s.partitions() {
		points = append(points, p.settled()...)
	}
	ctx, cancel := context.WithTimeout(sess.Context(), commitTimeout)
	defer cancel()
	if err := s.commits.commit(ctx, sess, points, all); err != nil && sess.Context().Err() == nil {
		s.log.Warn("offsets were not committed; trying again", "err", err)
	}
}

// adopt makes a partition known, and lets it read the retry topics.
func (s *subscription) adopt(p *partition) {
	s.mu.Lock()
	s.own[p.id] = p
	tiers := maps.Clone(s.seen)
	s.mu.Unlock()
	for name, wait := range tiers {
		p.readTier(name, wait)
	}
}

// disown takes a partition from the committer, and returns what is left to commit of it.
func (s *subscription) disown(p *partition) []point {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own[p.id] == p {
		delete(s.own, p.id)
	}
	return p.settled()
}

func (s *subscription) partitions() []*partition {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.own))
}

// grace is how long running handlers may take when a partition is given up: the whole drain at shutdown, and at a
// rebalance less than what the group waits for before it throws us out.
func (s *subscription) grace() time.Duration {
	limit := s.cfg.DrainTimeout
	if s.closing.Err() == nil {
		limit = min(limit, s.cfg.Params.Duration("rebalance-timeout")*4/5)
	}
	return limit
}

func (s *subscription) disconnect() {
	_ = s.reader.Close()
	_ = s.client.Close()
}
