// Package tracing traces messages with OpenTelemetry: from the publish through every attempt and retry to the dead
// letter and its redrive.
//
//	tracer := tracing.New(tracing.Config{})
//	publisher := tracer.Publisher(broker.Publisher(), "amqp")
//	pipeline, err := middleware.New(middleware.Config{Observer: tracer, ...})
//	router.AddMiddleware(pipeline.Middleware, tracer.Middleware)
//	manager := letters.Manager(tracer.Redriver(broker))
//
// It uses only the API: spans go where the program's SDK sends them, and without an SDK nowhere, at almost no cost. To
// combine it with metrics, use middleware.Observers{metrics, tracer}.
//
// # Spans
//
// Names, kinds and attributes are those of OpenTelemetry's messaging conventions (semconv 1.43.0, where they are still
// marked as in development), and redrive.* where these have none.
//
//	send orders      producer   a publish; its context travels in traceparent and tracestate
//	process orders   consumer   one attempt, with its outcome; its events are the retry, the dead letter, and failed
//	                            publishes
//	send orders      producer   a redrive (redrive.id names the dead letter)
//
// # One trace
//
// The headers traceparent and tracestate are written once, by the publish, and retries do not change them. Every
// attempt has that publish as its parent, so the whole life of a message is one trace, and its dead letter shows the
// trace's id. Deliveries are not parents of each other: an attempt may run hours after the one before. Instead, each
// links to its predecessor by the header x-trace-link, which names the failed attempt or the redrive that the delivery
// comes from. A redrive is part of the operator's trace and links to the attempt that died. With [Config.NewTraces]
// attempts have their own traces, which link to the publish.
//
// A message of a producer that does not trace gets the traceparent of its first failed attempt.
//
// # Logs
//
// The pipeline's log lines have the attempt's span in their context; [LogHandler] adds its ids to them, and the
// message's id to the handler's own lines.
package tracing
