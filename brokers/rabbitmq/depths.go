package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
)

// maxWaitQueues bounds the queues that Depths asks about, each with a question of about a millisecond.
const maxWaitQueues = 2000

var _ brokers.DepthReporter = (*Broker)(nil)

// Depths implements brokers.DepthReporter, over the queues that this Broker has come to know: those of the consumers that have
// subscribed on it, with the queues of their retries and dead letters, and the delay queues of the topics it has published delayed
// messages to (with x-declare=none, only the former). It counts what is delayed, in retry, ready and in dead letter queues, and
// what the broker has handed out is not ready. It asks for one queue after the other, 2,000 at most, on a connection of its
// own, and fails while one of them does not answer, such as a quorum queue without a leader.
//
// Where a naming scheme has no exchange, first deliveries wait in the retry queues of their consumer, and all count as what
// this Broker has used these queues for first. With x-transport=plugin messages wait inside the plugin, which does not tell
// AMQP how many: there is nothing to count.
func (b *Broker) Depths(ctx context.Context) ([]brokers.Depth, error) {
	if err := b.counting.connectOnce(ctx); err != nil {
		return nil, fmt.Errorf("rabbitmq: depths: %w", err)
	}
	d := &declarer{link: b.counting}
	defer d.close(ctx)
	var found []brokers.Depth
	for _, q := range b.waits.all() {
		messages, err := d.count(ctx, q.name)
		if err != nil {
			return nil, fmt.Errorf("rabbitmq: depth of queue %q: %w", q.name, err)
		}
		of := q.of
		i := slices.IndexFunc(found, func(f brokers.Depth) bool { f.Messages = 0; return f == of })
		if i < 0 {
			i, found = len(found), append(found, of)
		}
		found[i].Messages += messages
	}
	return found, nil
}

// count asks how many messages are ready in a queue, which in a delay queue are those that wait. A queue that somebody has
// deleted has none.
func (d *declarer) count(ctx context.Context, name string) (int64, error) {
	n := 0
	err := d.do(ctx, func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		n = q.Messages
		return err
	})
	var refusal *amqp.Error
	if errors.As(err, &refusal) && refusal.Code == amqp.NotFound {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return int64(n), nil
}

// waitQueues are the delay queues that a broker knows. It is safe for concurrent use.
type waitQueues struct {
	mu    sync.Mutex
	list  []waitQueue
	known map[string]bool
}

type waitQueue struct {
	name string
	of   brokers.Depth // without messages
}

// add notes queues in which messages wait. The first note about a queue stays.
func (w *waitQueues) add(queues []Queue, of brokers.Depth) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.known == nil {
		w.known = map[string]bool{}
	}
	for _, q := range queues {
		if w.known[q.Name] || len(w.list) == maxWaitQueues {
			continue
		}
		w.known[q.Name] = true
		w.list = append(w.list, waitQueue{q.Name, of})
	}
}

func (w *waitQueues) all() []waitQueue {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.list)
}
