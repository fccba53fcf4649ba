package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/sync/errgroup"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/notify"
	"github.com/redrive-go/redrive/middleware"
)

// A notice is tried for about half an hour, or for an hour if its receiver requests long pauses.
const (
	noticeAttempts = 13
	noticeFirst    = time.Second
	noticeLongest  = 5 * time.Minute
	noticeTimeout  = 15 * time.Second
)

// notifications find what people need to know, and deliver it by the pipeline that services use. Retries wait in
// memory: what a receiver has had is in the store, and after a restart the rest is found again.
type notifications struct {
	*notify.Notifier

	router *message.Router
}

// makeNotifications makes the notifier, if the configuration names receivers.
func (s *server) makeNotifications() error {
	receivers := s.cfg.Notifications.Receivers
	if len(receivers) == 0 {
		return nil
	}
	rules, reveal, err := s.cfg.Redaction.Rules()
	if err != nil {
		return usagef("%v", err)
	}
	if dlqhttp.Viewer.Allows(reveal) {
		rules = nil // viewers see everything
	}
	broker, err := memory.New(brokers.Config{Logger: s.logger})
	if err != nil {
		return err
	}
	s.app.onClose(broker.Close)
	notifier, err := notify.New(notify.Config{
		Store: s.letters.Store(), Publisher: broker.Publisher(), Receivers: receivers, Redaction: rules,
		PublicURL: s.cfg.Server.PublicURL, Quiet: s.cfg.Notifications.Quiet, Interval: s.cfg.Notifications.Interval,
		Retention: s.cfg.Retention, Logger: s.logger,
	})
	if err != nil {
		return usagef("notifications: %v", err)
	}
	backoff := middleware.WithCap(middleware.Exponential(noticeFirst, 2), noticeLongest)
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: broker, DeadLetters: s.letters, Logger: s.logger, MaxAttempts: noticeAttempts, Timeout: noticeTimeout,
		Backoff: backoff,
		Hooks: middleware.Hooks{OnDeadLetter: func(ctx context.Context, p middleware.DeadLetterParams) error {
			notifier.GaveUp(ctx, p.DeadLetter)
			return nil
		}},
	})
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(s.logger))
	if err != nil {
		return err
	}
	router.AddMiddleware(pipeline.Middleware)
	for _, name := range notifier.Receivers() {
		router.AddConsumerHandler("notify "+name, notify.Topic(name), broker.Subscriber(brokers.WithConcurrency(1)),
			func(m *message.Message) error {
				attempt, _ := middleware.AttemptFrom(m.Context())
				return retryAfter(notifier.Deliver(m.Context(), name, m.Payload), backoff.Delay(attempt.Number, 0))
			})
	}
	s.notifications = &notifications{notifier, router}
	return nil
}

// retryAfter honours the pause that a receiver requests with its answer, up to noticeLongest. A shorter one than the
// backoff would use up the attempts in no time.
func retryAfter(err error, backoff time.Duration) error {
	answer, ok := errors.AsType[*notify.StatusError](err)
	if !ok {
		return err
	}
	status, ok := errors.AsType[*middleware.StatusError](middleware.HTTPStatus(answer.Status, answer.Header))
	if !ok || status.RetryAfter <= backoff {
		return err
	}
	status.RetryAfter = min(status.RetryAfter, noticeLongest)
	return fmt.Errorf("notify: receiver %q: %w", answer.Receiver, status)
}

// run notifies until ctx ends.
func (n *notifications) run(ctx context.Context) error {
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return n.router.Run(ctx) })
	running.Go(func() error { return ended(ctx, n.Run(ctx)) })
	return running.Wait()
}
