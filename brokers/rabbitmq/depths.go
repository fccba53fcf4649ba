package rabbitmq

import (
	"context"
	"errors"
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

// Reaches implements driver.Reacher. Two clusters may have one name, and a plain subscriber may read any queue, so
// there must be a consumer of this one. A cluster that was renamed is recognized by its address.
func (t *transport) Reaches(ctx context.Context, o *driver.Outgoing, from driver.Transport) (bool, error) {
	other, ok := from.(*transport)
	if !ok && from != nil {
		return false, nil
	}
	if from != nil {
		here, address, err := t.publishing.server(ctx)
		there, otherAddress, otherErr := other.publishing.server(ctx)
		err = errors.Join(err, otherErr)
		if err != nil || address == otherAddress || here != there {
			return err == nil && address == otherAddress, err
		}
	}
	n, err := t.Readers(ctx, o.To)
	return n > 0, err
}

// server returns the name of the cluster, if any, and the address, each with the virtual host.
func (l *connection) server(ctx context.Context) (cluster, address string, err error) {
	conn, err := l.connection(ctx)
	uri, parseErr := amqp.ParseURI(l.url)
	if err = errors.Join(err, parseErr); err != nil {
		return "", "", err
	}
	name, _ := conn.Properties["cluster_name"].(string)
	return name + "/" + uri.Vhost, fmt.Sprintf("%s:%d/%s", uri.Host, uri.Port, uri.Vhost), nil
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
