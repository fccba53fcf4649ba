package sqlqueue

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// publication is the part of a call that goes to one destination.
type publication struct {
	topic  string // for all of its groups
	queue  int64  // or only for this one; 0 with a topic
	rows   []row
	places []int // of the rows, in the call
	err    error // there is no such destination
	outbox bool  // the connection is the caller's
	notify bool  // the database should wake consumers at commit, if it can
}

// Publish implements driver.Transport. A message from a delivery in progress in this process changes its row;
// everything else is stored in one transaction, or not at all.
func (t *transport) Publish(ctx context.Context, out []driver.Outgoing) []error {
	faults := make([]error, len(out))
	var moves []moved
	var publications []*publication
	type address struct {
		to       *driver.Destination
		existing bool
	}
	known := map[address]*publication{}
	for i := range out {
		o := &out[i]
		r := newRow(o)
		if faults[i] = t.fits(o, &r); faults[i] != nil {
			continue
		}
		if d := t.heldHere(o); d != nil {
			switch d.decide(true) {
			case rowOpen:
				moves = append(moves, moved{row: r, delivery: d, place: i})
				continue
			case rowLost:
				faults[i] = ErrLeaseLost
				continue
			case rowDeciding, rowDecided: // store a second message
			}
		}
		at := address{o.To, o.ExistingOnly}
		p := known[at]
		if p == nil {
			p = t.publicationTo(ctx, o)
			known[at] = p
			if p.err == nil {
				publications = append(publications, p)
			}
		}
		if faults[i] = p.err; p.err == nil {
			p.rows, p.places = append(p.rows, r), append(p.places, i)
		}
	}
	if len(moves) > 0 {
		t.move(ctx, moves, faults)
	}
	if len(publications) > 0 {
		t.insert(ctx, publications, faults)
	}
	return faults
}

// fits refuses a message that the database would refuse after reading all of it. A retry may be larger by the recorded
// failure. The database decides on a dead letter whose payload is larger than that: another program has stored it.
func (t *transport) fits(o *driver.Outgoing, r *row) error {
	limit := t.maxMessage - driver.Headroom
	size := int64(len(r.payload) + len(r.headers) + len(r.uuid))
	switch {
	case o.To.Kind == driver.ToDeadLetters:
		limit = max(t.largest, int64(len(r.payload)+driver.Headroom))
	case !o.First && int64(len(r.payload)) <= limit:
		limit = t.maxMessage
	}
	if size > limit {
		return fmt.Errorf("%w: %d bytes with headers, the limit is %d", brokers.ErrTooLarge, size, limit)
	}
	return nil
}

// publicationTo resolves a destination. A topic is created on first use, unless it must exist.
func (t *transport) publicationTo(ctx context.Context, o *driver.Outgoing) *publication {
	to := o.To
	p := &publication{topic: to.Topic}
	switch to.Kind {
	case driver.ToTopic:
		if p.err = checkName("topic", p.topic); p.err == nil && o.ExistingOnly {
			p.err = t.store.mustRead(ctx, p.topic)
		}
	case driver.ToDeadLetters:
		p.topic = to.Names.Dead
		p.err = checkName("topic", p.topic)
	case driver.ToConsumer:
		p.queue, p.err = t.queueOf(ctx, to.Topic, to.Consumer)
	}
	return p
}

// heldHere returns the delivery that o came from if it is still in progress in this process, or nil.
func (t *transport) heldHere(o *driver.Outgoing) *delivery {
	if o.To.Kind != driver.ToConsumer || o.Origin.Offset == nil || o.Origin.Broker != t.scheme {
		return nil
	}
	d := t.leases.get(*o.Origin.Offset)
	if d == nil || d.stream.q.Topic != o.To.Topic || d.stream.q.Group != o.To.Consumer || !d.carries(o.Message.UUID) {
		return nil
	}
	return d
}

// move changes the rows of deliveries in progress.
func (t *transport) move(ctx context.Context, moves []moved, faults []error) {
	rows := sqldb.Map(moves, (*moved).leased)
	// Look for locks first: a statement that waited for one and was cancelled may still have moved the row, which cannot
	// be told from a lost lease.
	_, locked, err := t.store.unlocked(ctx, rows)
	done := map[int64]bool{}
	if err == nil {
		free := slices.DeleteFunc(slices.Clone(moves), func(m moved) bool { return slices.Contains(locked, m.leased()) })
		err = together(ctx, len(moves), t.reschedule(ctx, free, done))
	}
	due := map[int64]time.Duration{} // by queue
	for i := range moves {
		m := &moves[i]
		switch {
		case done[m.id()]:
			m.decided(rowDecided)
			t.leases.drop(m.delivery)
			if first, ok := due[m.stream.id]; !ok || m.delay < first {
				due[m.stream.id] = m.delay
			}
			continue
		case err != nil:
			faults[m.place] = err
		case slices.Contains(locked, m.leased()):
			faults[m.place] = driver.ErrBusy
		default:
			// An earlier attempt may have moved the row and lost its answer: do not create a second message.
			faults[m.place] = ErrLeaseLost
		}
		m.decided(rowOpen)
		if errors.Is(faults[m.place], ErrLeaseLost) {
			m.lose()
		}
	}
	for queue, delay := range due {
		t.wake(ctx, queue, delay)
	}
}

// reschedule moves rows in few statements, until one fails.
func (t *transport) reschedule(ctx context.Context, moves []moved, done map[int64]bool) error {
	for some := range chunks(moves, t.store.most) {
		ids, err := t.store.reschedule(ctx, some)
		if err != nil {
			return err
		}
		maps.Copy(done, set(ids))
	}
	return nil
}

// together marks the error of a statement for n messages, of which the database may have refused only one: the engine
// then tries the messages of each caller separately.
func together(ctx context.Context, n int, err error) error {
	if err == nil || n == 1 || sqldb.Unreachable(err) || ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("%w: %w", driver.ErrTogether, err)
}

// insert stores publications together, and wakes their consumers.
func (t *transport) insert(ctx context.Context, publications []*publication, faults []error) {
	n := 0
	for _, p := range publications {
		p.notify = p.queue == 0 && t.notices != nil && t.notices.publish(p.topic)
		n += len(p.rows)
	}
	err := together(ctx, n, t.store.insert(ctx, publications))
	for _, p := range publications {
		if err != nil {
			for _, place := range p.places {
				faults[place] = err
			}
			continue
		}
		delay := shortest(p.rows)
		switch {
		case p.queue != 0:
			t.wake(ctx, p.queue, delay)
		default:
			if t.notices != nil && !p.notify {
				t.notices.schedule(p.topic, delay)
			}
			if !t.listening() { // otherwise the notification is on its way, even for queues unknown to this process
				t.watcher.wakeIf(func(r *reader) bool { return r.topic == p.topic }, delay)
			}
		}
	}
}

// insert stores publications: a small one in one statement, otherwise all in one transaction.
func (s *store) insert(ctx context.Context, publications []*publication) error {
	_, err := write(ctx, s, func() (none struct{}, err error) {
		if len(publications) == 1 && chunked(publications[0].rows, s.most) == len(publications[0].rows) {
			return none, s.insertPublication(ctx, s.db, publications[0])
		}
		return none, sqldb.InTx(ctx, s.db, s.name.ReadCommitted(), func(tx *sql.Tx) error {
			for _, p := range publications {
				if err := s.insertPublication(ctx, tx, p); err != nil {
					return err
				}
			}
			return nil
		})
	})
	return err
}

func (s *store) insertPublication(ctx context.Context, db DB, p *publication) error {
	for rows := range chunks(p.rows, s.most) {
		if p.queue == 0 {
			if err := s.insertTopic(ctx, db, p, rows); err != nil {
				return err
			}
			continue
		}
		query, args := s.insertInto(p.queue, rows)
		if _, err := db.ExecContext(ctx, query, args...); err != nil {
			return err
		}
	}
	return nil
}

// insertTopic publishes rows of p to every group of its topic.
func (s *store) insertTopic(ctx context.Context, db DB, p *publication, rows []row) error {
	for range 3 {
		if found, err := s.publish(ctx, db, p, rows); err != nil || found {
			return err
		}
		// The queue of no group keeps the messages until one subscribes.
		if _, err := s.newQueue(ctx, db, p.topic, "", "1"); err != nil {
			return err
		}
	}
	return fmt.Errorf("the topic %q keeps disappearing", p.topic)
}

// Bounds of one INSERT. PostgreSQL accepts 65,535 parameters, and beyond a few hundred rows larger statements gain
// nothing.
const (
	maxRows  = 500
	maxBytes = 4 << 20
)

// chunks splits rows into statements of at most that many bytes.
func chunks[R interface{ size() int }](rows []R, most int64) iter.Seq[[]R] {
	return func(yield func([]R) bool) {
		for len(rows) > 0 {
			n := chunked(rows, most)
			if !yield(rows[:n]) {
				return
			}
			rows = rows[n:]
		}
	}
}

// chunked returns how many of rows fit one statement.
func chunked[R interface{ size() int }](rows []R, most int64) (n int) {
	for bytes := int64(0); n < len(rows) && n < maxRows; n++ {
		if bytes += int64(rows[n].size()); n > 0 && bytes > most {
			break
		}
	}
	return n
}
