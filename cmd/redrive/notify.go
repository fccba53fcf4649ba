package main

import (
	"context"
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

// A notice is tried for about half an hour.
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
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: broker, DeadLetters: s.letters, Logger: s.logger, MaxAttempts: noticeAttempts, Timeout: noticeTimeout,
		Backoff: middleware.WithCap(middleware.Exponential(noticeFirst, 2), noticeLongest),
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
			func(m *message.Message) error { return notifier.Deliver(m.Context(), name, m.Payload) })
	}
	s.notifications = &notifications{notifier, router}
	return nil
}

// run notifies until ctx ends.
func (n *notifications) run(ctx context.Context) error {
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return n.router.Run(ctx) })
	running.Go(func() error { return ended(ctx, n.Run(ctx)) })
	return running.Wait()
}
