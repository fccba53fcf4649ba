package collector

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
)

// maxCalls is how many messages are sent at once to a target that takes no batches.
const maxCalls = 64

// route is a message's route back: to which broker, and whether to its consumer or, if that is a foreign one, to its
// topic.
type route struct {
	target *Target
	topic  bool
}

// route finds the route of a message.
func (r *Router) route(origin envelope.Origin, m *message.Message) (route, error) {
	collected := driver.CollectedFrom(m.Context())
	target, err := r.target(collected.Broker, origin.Broker)
	if err != nil {
		return route{}, err
	}
	if origin.Topic == "" && origin.Consumer == "" {
		return route{}, errors.New("collector: redrive: the origin of the message is unknown: set the origin of the source " +
			"it was collected from")
	}
	foreign := collected.Format != "" && collected.Format != "redrive"
	return route{target, foreign && target.Publisher != nil}, nil
}

func (rt route) redriver() dlq.Redriver {
	if rt.topic {
		return dlq.RedriverFunc(rt.target.publish)
	}
	return rt.target.Redriver
}

// publish is a dlq.RedriverFunc.
func (t *Target) publish(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error {
	if delay > 0 {
		envelope.SetDelay(m, delay)
	}
	m.SetContext(ctx)
	if err := t.Publisher.Publish(origin.Topic, m); err != nil {
		return fmt.Errorf("collector: redrive to topic %s of %s: %w", origin.Topic, t.Name, err)
	}
	return nil
}

// RescheduleAll implements redrive.BatchRedriver: messages with different routes are sent concurrently, and the entries
// that need no outcome are closed together.
func (r *Router) RescheduleAll(ctx context.Context, origins []envelope.Origin, messages []*message.Message) []error {
	errs := make([]error, len(messages))
	byRoute := map[route][]int{}
	for i, m := range messages {
		rt, err := r.route(origins[i], m) //nolint:contextcheck // of the message
		if err != nil {
			errs[i] = err
			continue
		}
		byRoute[rt] = append(byRoute[rt], i)
	}
	var sending sync.WaitGroup
	for rt, indexes := range byRoute {
		sending.Go(func() {
			to, copies := make([]envelope.Origin, len(indexes)), make([]*message.Message, len(indexes))
			for n, i := range indexes {
				to[n], copies[n] = origins[i], r.strip(messages[i]) //nolint:contextcheck // of the message
			}
			for n, err := range redrive.RescheduleAll(ctx, rt.redriver(), to, copies, maxCalls) {
				errs[indexes[n]] = err
			}
		})
	}
	sending.Wait()
	var confirmed []*message.Message
	for i, m := range messages {
		if errs[i] == nil {
			confirmed = append(confirmed, m)
		}
	}
	r.close(ctx, confirmed)
	return errs
}

// close resolves the entries of confirmed messages whose consumers do not report. After a failure they stay RETRYING
// until the lease ends: the messages were sent, and must not be sent again.
func (r *Router) close(ctx context.Context, confirmed []*message.Message) {
	c := driver.Change{
		Action: driver.ActionSucceed, Actor: "redrive", At: driver.Now(ctx, r.store),
		Note: "confirmed by the broker; its consumer does not report",
	}
	for _, m := range confirmed {
		name := driver.CollectedFrom(m.Context()).Broker //nolint:contextcheck // of the message
		id, err := driver.ParseID(m.Metadata[envelope.KeyRedriveID])
		if name == "" || err != nil { // dead-lettered by its own service, or not the redrive of an entry
			continue
		}
		if target, err := r.target(name, ""); err == nil && target.Outcome == OutcomeConfirmed {
			c.IDs = append(c.IDs, id)
		}
	}
	if len(c.IDs) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	results, err := r.store.Change(ctx, c)
	warn := func(err error, ids ...int64) {
		r.logger.WarnContext(ctx, "redriven messages are confirmed, but their entries could not be closed: resolve them "+
			"manually",
			"entry_ids", ids, "error", err)
	}
	if err != nil {
		warn(err, c.IDs...)
		return
	}
	for _, result := range results {
		if result.Err != nil && !errors.Is(result.Err, dlq.ErrConflict) {
			warn(result.Err, result.ID)
		}
	}
}

// Readers implements redrive.ReaderCounter. The groups that read a foreign consumer's topic are unknown.
func (r *Router) Readers(ctx context.Context, origin envelope.Origin) (int, error) {
	m := message.NewMessage("", nil)
	m.SetContext(ctx)
	rt, err := r.route(origin, m) //nolint:contextcheck // of the message, which is ctx
	if err != nil {
		return 0, err
	}
	counter, ok := rt.redriver().(redrive.ReaderCounter)
	if !ok {
		return 0, fmt.Errorf("collector: readers of %s: %w", origin.Topic, errors.ErrUnsupported)
	}
	return counter.Readers(ctx, origin)
}
