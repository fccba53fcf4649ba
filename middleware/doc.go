// Package middleware retries, defers, skips or dead-letters messages whose handler fails, without blocking the messages
// behind them and without losing any. It is one Watermill middleware, [Pipeline.Middleware], made by [New]:
//
//	pipeline, err := middleware.New(middleware.Config{
//		Rescheduler: broker,  // a broker of this module, or anything that brings a message back later
//		DeadLetters: letters, // a store, a broker, or both by Sinks
//	})
//	router.AddMiddleware(pipeline.Middleware)
//
// # What happens to a message
//
// For each delivery the pipeline reads the control data (its id, how often it failed), runs the handler under a
// deadline with panics turned into errors, and maps an error to exactly one [Outcome]:
//
//	success      the handler's messages are published, ack
//	retry        the failure is counted and recorded, the message comes back after the backoff, ack
//	dead letter  permanent, malformed, expired or exhausted: kept with the reason, ack
//	skip         logged, counted, ack
//	defer        not now: it comes back later, no attempt consumed, ack
//	return       this consumer is shutting down: nack, no attempt consumed
//
// A retry or dead letter is confirmed before the message is acked, on a context that outlives the message's own. A
// crash in between delivers twice, never zero times. The message is retried and stored as it was received, whatever the
// handler did to it: headers, payload and id are restored, even after writes into the payload's bytes. Only messages
// that could not be published anywhere are nacked with an error, after a pause, because brokers redeliver at once.
//
// # How errors are classified
//
// The first of these that applies decides: the handler's marks ([Permanent], [Retryable], [Skip], [Defer],
// [RetryAfter]); the rules of the configuration in their order ([MatchError], [MatchType], [MatchFunc]); the built-in
// rules, in this order:
//
//	panic, Goexit                        retryable
//	Permanent() bool, Retryable() bool   what the error says of itself
//	backoff.Permanent, .RetryAfter       permanent; retryable after its delay (cenkalti/backoff)
//	malformed envelope or JSON           permanent
//	StatusError, StatusCode() int,       408, 423, 425, 429 and most 5xx retryable, other 4xx permanent;
//	HTTPStatusCode() int                 Retry-After honoured; with an ErrorCode() of AWS's throttling, retryable
//	gRPC status                          Unavailable, DeadlineExceeded, ResourceExhausted, Aborted, Internal, Canceled
//	                                     retryable; Unknown is unknown; the others permanent
//	SQLState() string                    classes 08, 40, 53, 57, 58, XX, locks, failover, 23503 retryable;
//	                                     0A, 21, 22, 23, 28, 3D, 3F, 42, 44, 54, P0 permanent
//	MySQL error number                   the same by number
//	sql.ErrNoRows                        permanent (not found)
//	driver.ErrBadConn and the like       retryable
//	failsafe-go, gobreaker               open circuit, full bulkhead, rate limit defer; timeout, retries retryable
//	context.DeadlineExceeded, Canceled   retryable; of the message's own context: return
//	connections, network, DNS, disk      retryable
//	Timeout() bool, Temporary() bool     retryable if true
//
// Everything else is unknown and handled according to [HandlerConfig.OnUnknown], by default retried.
//
// # Composition
//
// Pipeline.Middleware does Normalize(Decide(Recover(Timeout(handler)))) in one function, which costs one allocation on
// success. A chain composed by hand takes [Classifier], [Pipeline.Decide] and [Backoff] from here, and Recoverer and
// Timeout from Watermill. Watermill's Retry and PoisonQueue must not be used inside a pipeline; its other middlewares
// work on either side, with the exceptions in docs/composition.md.
//
// A handler gets its attempt from [AttemptFrom]. Its context ends when it returns. The deadline is only the context's:
// a handler that ignores it keeps its message, and if it succeeds late, it has succeeded.
package middleware
