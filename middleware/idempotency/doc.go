// Package idempotency runs a message's effect once per consumer, although brokers deliver messages at least once.
//
// A [Guard] is a middleware. It claims the pair of consumer and message id in a [Store] before the handler runs, and
// marks it as done afterwards; a redelivery of a message that is done is acked without running the handler. Put it
// inside the retry pipeline, next to the handler:
//
//	guard, err := idempotency.New(idempotency.Config{Store: store})
//	...
//	router.AddMiddleware(pipeline.Middleware, guard.Middleware)
//
// # What happens to a delivery
//
//	the message is     the handler   the delivery ends with
//	new                runs          its own result; done if that is success, else forgotten, so that the retry runs it
//	done               does not run  success, and the messages that the handler produced the first time
//	being handled      does not run  [BusyError], deferred: no attempt is consumed
//	one that the store does not run  its error, deferred: no attempt is consumed
//	cannot claim now
//	done, unreadably   does not run  the same: the messages that it produced may not have been published
//
// A failed attempt never counts as done. An owner that crashed is replaced when its lease ends; an owner that is merely
// slow renews it. A message without an id runs each time, with a warning. If its content differs from that of the
// handled message with the same id, it is a different message and runs: a producer that sends an order twice under one
// id must send the same bytes.
//
// # What is guaranteed
//
// A crash between the handler's effect and the mark makes the effect happen again. A handler whose effect is in a SQL
// database closes this gap: package sqlstore marks the message in the handler's own transaction, and then the effect
// happens exactly once.
//
// Messages that the handler returns for publishing are kept with the mark and returned again for a duplicate, because
// the crash may have happened before they were published. They are therefore published at least once, with the same
// ids.
package idempotency
