package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

const (
	// cleanEvery is how often finished records are removed from retry topics, and cleanTimeout bounds it.
	cleanEvery   = time.Minute
	cleanTimeout = 5 * time.Second
)

// clean removes the records of retry and parking topics that the group has finished. Kafka forgets the positions of a
// group that is inactive for long (offsets.retention.minutes); without positions, any records left in the topics would
// be handled again. Topics that others may read too are left alone, such as those for first deliveries.
func (s *subscription) clean(ctx context.Context) {
	finished := kadm.Offsets{}
	for at, offset := range s.commits.toClean() {
		if s.isOurs(at.topic) && offset > 0 {
			finished.AddOffset(at.topic, at.partition, offset, -1)
		}
	}
	if len(finished) == 0 || s.mayNotClean.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
	defer cancel()
	answer, err := s.b.topics.admin.DeleteRecords(ctx, finished)
	if err == nil {
		err = answer.Error()
	}
	switch {
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.PolicyViolation):
		s.mayNotClean.Store(true)
		s.log.Info("this user may not delete records, so finished retries stay until their retention ends", "err", err)
	case err != nil:
		s.log.Debug("finished retries were not removed; trying again", "err", err)
	}
}

// isOurs reports whether a topic is for retries of this group and this topic only.
func (s *subscription) isOurs(topic string) bool {
	const other = "another"
	naming := s.b.cfg.Naming
	if topic == s.b.parkingName(s.q.Topic, s.q.Group) {
		return topic != s.b.parkingName(s.q.Topic, other) && topic != s.b.parkingName(other, s.q.Group)
	}
	wait, ok := s.kinds[0].delay(topic)
	return ok && topic != naming.For(s.q.Topic, other).Retry(wait) && topic != naming.For(other, s.q.Group).Retry(wait)
}
