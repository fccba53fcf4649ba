package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/wait"
)

const (
	// turn is how long the notifying process keeps its turn without renewing it.
	turn = time.Minute
	// downChecks is how many failed checks in a row mean that the store is down.
	downChecks = 3
)

// Notifier finds events that need a person, publishes a notice of each, and delivers it. It is safe for concurrent use.
type Notifier struct {
	cfg     Config
	store   driver.NoticeStore
	runs    redrive.Store // nil when the store has none
	process string

	mu sync.Mutex
	// out has the published notices until a later read of the store shows that the receiver has had them: after an earlier
	// read they would be sent again.
	out map[driver.Notice]state
	// sent has when notices were published within the last hour.
	sent map[limited][]time.Time
	// mine means that it is this process's turn. failed counts the failed checks in a row, since the time of the first.
	mine   bool
	failed int
	since  time.Time
}

// limited are the notices that count towards one limit. Outages have their own, because other notices may have used up
// theirs.
type limited struct {
	receiver string
	outages  bool
}

// state is how far the delivery of a notice is.
type state int

const (
	published state = iota + 1
	delivered       // but not recorded in the store yet
	recorded
)

// New makes a Notifier. The error reports every fault of the configuration.
func New(cfg Config) (*Notifier, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("notify: %w", err)
	}
	store, ok := driver.As[driver.NoticeStore](cfg.Store)
	if !ok {
		return nil, errors.New("notify: this store does not record notifications")
	}
	n := &Notifier{
		cfg: cfg, store: store, process: uuid.NewString(),
		out: map[driver.Notice]state{}, sent: map[limited][]time.Time{},
	}
	n.runs, _ = driver.As[redrive.Store](cfg.Store)
	return n, nil
}

// Topic returns the topic of a receiver's notices.
func Topic(receiver string) string { return topicPrefix + receiver }

const topicPrefix = "notifications."

// Receivers returns the names of the configured receivers.
func (n *Notifier) Receivers() []string {
	names := make([]string, len(n.cfg.Receivers))
	for i := range names {
		names[i] = n.cfg.Receivers[i].Name
	}
	return names
}

// Run checks the store for events until the context ends, and returns the context's error.
func (n *Notifier) Run(ctx context.Context) error {
	for {
		if err := n.check(ctx); err != nil && ctx.Err() == nil {
			n.cfg.Logger.WarnContext(ctx, "events for notifications could not be read; reading is retried", "error", err)
			n.down(ctx)
		}
		if err := wait.For(ctx, n.cfg.Interval); err != nil {
			return err
		}
	}
}

// check publishes the notices that receivers have not had, if it is this process's turn.
func (n *Notifier) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, turn/2)
	defer cancel()
	now := driver.Now(ctx, n.store).UTC().Truncate(time.Microsecond)
	mine, err := n.store.HoldNotices(ctx, n.process, now, now.Add(turn))
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.mine, n.failed = mine, 0
	n.mu.Unlock()
	if err := n.record(ctx); err != nil || !mine {
		return err
	}
	told, err := n.store.Notices(ctx, now.Add(-2*window))
	if err != nil {
		return err
	}
	found, err := n.find(ctx, now)
	if err != nil {
		return err
	}
	n.mu.Lock()
	for _, t := range told {
		delete(n.out, driver.Notice{Receiver: t.Receiver, ID: t.ID}) // whichever process delivered it
	}
	n.mu.Unlock()
	for i := range n.cfg.Receivers {
		if err := n.publishNew(ctx, &n.cfg.Receivers[i], told, found, now); err != nil {
			return err
		}
	}
	return nil
}

// publishNew publishes the notices that a receiver has not had. A new receiver only gets those of later events.
func (n *Notifier) publishNew(ctx context.Context, to *Receiver, told []driver.Notice, found []wire.Notice,
	now time.Time,
) error {
	var since time.Time // when the receiver was first seen
	had, lately := map[string]bool{}, 0
	for _, t := range told {
		switch {
		case t.Receiver != to.Name:
		case t.ID == "":
			since = t.At
		default:
			had[t.ID] = true
			if t.At.After(now.Add(-time.Hour)) {
				lately++
			}
		}
	}
	if since.IsZero() {
		return n.store.PutNotice(ctx, driver.Notice{Receiver: to.Name, At: now})
	}
	for i := range found {
		notice := &found[i]
		if !had[notice.ID] && !notice.At.Before(since) && slices.Contains(to.On, NoticeKind(notice.Kind)) {
			sent, err := n.publish(to, notice, lately, now)
			if err != nil {
				return err
			}
			if sent {
				lately++
			}
		}
	}
	return nil
}

// publish publishes a notice for delivery, unless it is published already or the receiver has had its notices of this
// hour. It reports whether it did.
func (n *Notifier) publish(to *Receiver, notice *wire.Notice, lately int, now time.Time) (bool, error) {
	id := driver.Notice{Receiver: to.Name, ID: notice.ID}
	n.mu.Lock()
	defer n.mu.Unlock()
	limit := limited{to.Name, NoticeKind(notice.Kind) == StoreDown}
	sent := slices.DeleteFunc(n.sent[limit], func(at time.Time) bool { return !at.After(now.Add(-time.Hour)) })
	n.sent[limit] = sent
	if n.out[id] != 0 || max(lately, len(sent)) >= to.PerHour {
		return false, nil
	}
	body, err := json.Marshal(notice)
	if err != nil {
		return false, fmt.Errorf("notify: %w", err)
	}
	if err := n.cfg.Publisher.Publish(Topic(to.Name), message.NewMessage(uuid.NewString(), body)); err != nil {
		return false, fmt.Errorf("notify: %w", err)
	}
	n.out[id], n.sent[limit] = published, append(sent, now)
	return true, nil
}

// down publishes the notice that the store does not respond, once per outage, if it was this process's turn before.
func (n *Notifier) down(ctx context.Context) {
	now := time.Now().UTC()
	n.mu.Lock()
	n.failed++
	if n.failed == 1 {
		n.since = now
	}
	report, since := n.failed >= downChecks && n.mine, n.since
	n.mu.Unlock()
	if !report {
		return
	}
	text := "The dead letter store has not answered since " + since.Format(time.RFC3339)
	notice := n.noticeOf(StoreDown, n.process+since.String(), since, text, "system")
	for i := range n.cfg.Receivers {
		if to := &n.cfg.Receivers[i]; slices.Contains(to.On, StoreDown) {
			if _, err := n.publish(to, &notice, 0, now); err != nil {
				n.cfg.Logger.ErrorContext(ctx, "the notice that the store is down could not be published", "receiver", to.Name, "error",
					err)
			}
		}
	}
}

// Deliver posts a notice that was published for a receiver. Its error is for a pipeline to retry.
func (n *Notifier) Deliver(ctx context.Context, receiver string, payload []byte) error {
	at := slices.IndexFunc(n.cfg.Receivers, func(r Receiver) bool { return r.Name == receiver })
	if at < 0 {
		return fmt.Errorf("notify: no receiver %q is configured", receiver)
	}
	var notice wire.Notice
	if err := json.Unmarshal(payload, &notice); err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	if err := n.post(ctx, &n.cfg.Receivers[at], &notice, payload); err != nil {
		return err
	}
	n.settle(ctx, receiver, notice.ID)
	return nil
}

// GaveUp records that a notice was dead-lettered, so that it is not published again. It is for the pipeline's
// OnDeadLetter hook.
func (n *Notifier) GaveUp(ctx context.Context, d *envelope.DeadLetter) {
	var notice wire.Notice
	receiver, ours := strings.CutPrefix(d.Origin.Topic, topicPrefix)
	if err := json.Unmarshal(d.Message.Payload, &notice); err == nil && ours {
		n.settle(ctx, receiver, notice.ID)
	}
}

// settle records that a receiver has had a notice, or will never get it. While the store does not take the record, it
// is kept here.
func (n *Notifier) settle(ctx context.Context, receiver, id string) {
	n.mu.Lock()
	n.out[driver.Notice{Receiver: receiver, ID: id}] = delivered
	n.mu.Unlock()
	if err := n.record(ctx); err != nil {
		n.cfg.Logger.WarnContext(ctx, "a notice was delivered, but not recorded; recording is retried", "receiver",
			receiver, "error", err)
	}
}

// record stores which notices were delivered.
func (n *Notifier) record(ctx context.Context) error {
	n.mu.Lock()
	var ids []driver.Notice
	for id, state := range n.out {
		if state == delivered {
			ids = append(ids, id)
		}
	}
	n.mu.Unlock()
	for _, id := range ids {
		had := id
		had.At = driver.Now(ctx, n.store)
		if err := n.store.PutNotice(ctx, had); err != nil {
			return err
		}
		n.mu.Lock()
		n.out[id] = recorded
		n.mu.Unlock()
	}
	return nil
}
