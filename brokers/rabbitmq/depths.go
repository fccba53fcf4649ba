package rabbitmq

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
)

// maxWaitQueues bounds the queues that Depths queries, at about a millisecond each.
const maxWaitQueues = 2000

// Depths implements brokers.DepthReporter.
func (t *transport) Depths(ctx context.Context) ([]brokers.Depth, error) {
	if err := t.asking.connectOnce(ctx); err != nil {
		return nil, fmt.Errorf("rabbitmq: depths: %w", err)
	}
	d := &declarer{link: t.asking}
	defer d.close(ctx)
	var found []brokers.Depth
	for _, q := range t.waits.due(time.Now()) {
		state, there, err := d.count(ctx, q.name)
		if err != nil {
			return nil, fmt.Errorf("rabbitmq: depth of queue %q: %w", q.name, err)
		}
		if there {
			t.waits.add(q.of, Queue{Name: q.name})
		}
		of := q.of
		i := slices.IndexFunc(found, func(f brokers.Depth) bool { f.Messages = 0; return f == of })
		if i < 0 {
			i, found = len(found), append(found, of)
		}
		found[i].Messages += int64(state.Messages)
	}
	return found, nil
}

// Readers implements driver.ReaderCounter.
func (t *transport) Readers(ctx context.Context, to *driver.Destination) (int, error) {
	if err := t.asking.connectOnce(ctx); err != nil {
		return 0, err
	}
	d := &declarer{link: t.asking}
	defer d.close(ctx)
	state, _, err := d.count(ctx, to.Names.Queue)
	return state.Consumers, err
}

// count queries how many messages are ready in a queue (in a delay queue, those are the waiting ones), how many
// consumers read it, and whether it exists. A missing queue has none.
func (d *declarer) count(ctx context.Context, name string) (state amqp.Queue, there bool, err error) {
	var answer amqp.Queue // may still be written after an error
	err = d.do(ctx, func(ch *amqp.Channel) (err error) {
		answer, err = ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return err
	})
	switch {
	case err == nil:
		return answer, true, nil
	case isNotFound(err):
		err = nil
	}
	return amqp.Queue{}, false, err
}

// waitQueues are the queues that Depths queries. It is safe for concurrent use.
type waitQueues struct {
	mu    sync.Mutex
	known map[string]*waitQueue
}

type waitQueue struct {
	name  string
	of    brokers.Depth // without a count
	later bool          // it is declared when first needed, and has not been seen yet
	next  time.Time     // when to look for it again
}

// laterEvery is how often to look for a queue that is declared when first needed: each query for a missing queue costs
// a channel. Those that this process declares are known at once.
const laterEvery = time.Minute

// add registers queues that exist. The first entry for a queue stays.
func (w *waitQueues) add(of brokers.Depth, queues ...Queue) {
	w.addLater(of, queues...)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range queues {
		if known := w.known[q.Name]; known != nil {
			known.later = false
		}
	}
}

// addLater registers queues that any process declares when they are first needed, unless there are too many.
func (w *waitQueues) addLater(of brokers.Depth, queues ...Queue) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range queues {
		if w.known[q.Name] == nil && len(w.known) < maxWaitQueues {
			w.known[q.Name] = &waitQueue{name: q.Name, of: of, later: true}
		}
	}
}

// due returns the queues to query now.
func (w *waitQueues) due(now time.Time) []waitQueue {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []waitQueue
	for _, name := range slices.Sorted(maps.Keys(w.known)) {
		q := w.known[name]
		if q.later && now.Before(q.next) {
			continue
		}
		q.next = now.Add(laterEvery)
		list = append(list, *q)
	}
	return list
}
