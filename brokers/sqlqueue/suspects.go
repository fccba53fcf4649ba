package sqlqueue

import (
	"context"
	"time"

	"github.com/redrive-go/redrive/brokers/internal/crash"
)

// A row whose lease ran out without an answer has perhaps ended its worker's process. After the first time that is said of
// every row which the process had, the prefetched ones too. So from then on a row only counts when its handler had begun,
// which is written down before (start), and after the second time suspects are run one after the other, beside what else
// there is: by the third the message that kills is nearly always alone.

// isSuspect tells whether d is run apart.
func (s *subscription) isSuspect(d *delivery) bool { return d.row.crashes >= 2 && s.crashLimit > 0 }

// acquit waits until the database knows the answer to a suspect: should the next one kill, this one must not count again.
func (s *subscription) acquit(d *delivery) {
	if d.stored == nil {
		return
	}
	select {
	case <-d.stored:
	case <-s.stopped:
	}
}

// isKiller tells whether d must not reach a handler any more.
func (s *subscription) isKiller(d *delivery) bool {
	return s.crashLimit > 0 && d.row.crashes >= s.crashLimit
}

// runSuspects hands suspects to the workers, each when the one before is answered.
func (s *subscription) runSuspects() {
	defer close(s.alone)
	for d := range s.suspects {
		s.alone <- d
		<-s.answered
	}
}

// begin writes down that the handler of a row which may have ended a process begins. It reports false when d is not to be
// handed out: the lease is lost, or the database does not answer, and a crash would not be counted.
func (s *subscription) begin(d *delivery) bool {
	if d.row.crashes == 0 || s.crashLimit == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.broker.cfg.PublishTimeout)
	defer cancel()
	begun, err := s.broker.store.start(ctx, d.leased())
	if err != nil {
		s.broker.log.WarnContext(ctx, "sqlqueue: a message that may have ended a process waits for the database",
			"topic", s.topic, "group", s.group, "id", d.row.id, "error", err)
	}
	return begun
}

// bury dead-letters a row that was under way each time its worker died. It goes on trying until the subscription ends.
func (s *subscription) bury(d *delivery) {
	m := d.message(s.ctx)
	letter := crash.Letter(m, d.from, d.row.crashes, s.crashLimit, time.Now())
	pause := 100 * time.Millisecond
	for {
		ctx, cancel := context.WithTimeout(m.Context(), 3*s.broker.cfg.PublishTimeout)
		err := crash.Keep(ctx, s.broker.cfg, letter, s.broker.DeadLetter)
		cancel()
		if err == nil {
			s.broker.log.Error("sqlqueue: message dead-lettered before its handler",
				"topic", s.topic, "group", s.group, "message_id", m.UUID, "reason", letter.Err.Message)
			d.end(context.Canceled)
			s.finish(d, acked, 0)
			return
		}
		if d.isLost() {
			s.finish(d, released, 0) // another worker does it
			return
		}
		s.broker.log.Warn("sqlqueue: a message that ends its worker's process could not be dead-lettered",
			"topic", s.topic, "group", s.group, "message_id", m.UUID, "error", err)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-s.stopped:
			timer.Stop()
			d.end(context.Canceled)
			s.finish(d, released, 0)
			return
		}
		pause = min(2*pause, 10*time.Second)
	}
}
