// Package tracing traces messages with OpenTelemetry: from the publish through every attempt and retry to the dead
// letter, and on through its redrive.
//
//	tracer := tracing.New(tracing.Config{})
//	publisher := tracer.Publisher(broker.Publisher(), "amqp")
//	pipeline, err := middleware.New(middleware.Config{Observer: tracer, ...})
//	router.AddMiddleware(pipeline.Middleware, tracer.Middleware)
//	manager := letters.Manager(tracer.Redriver(broker))
//
// It uses the API alone: spans go where the program's SDK sends them, and without one nowhere, at almost no cost.
// Besides metrics it is one of several: middleware.Observers{metrics, tracer}.
//
// # Spans
//
// Names, kinds and attributes are those of OpenTelemetry's messaging conventions (semconv 1.43.0, which still calls
// them in development), and redrive.* for what these have no word for.
//
//	send orders      producer   a publish; its context travels in traceparent and tracestate
//	process orders   consumer   one attempt, with its outcome; events tell of the retry, the dead letter, and publishes
//	                            that failed
//	send orders      producer   a redrive (redrive.id names the dead letter)
//
// # One trace
//
// The headers traceparent and tracestate are written once, by the publish, and no retry changes them. Every attempt has
// that publish as its parent, so all of a message's life is one trace, whose id its dead letter shows. Deliveries are
// not parents of each other: an attempt may come hours after the one before. Each links to it, instead, by the header
// x-trace-link, which names the failed attempt, or the redrive, that the delivery comes from. A redrive is part of the
// operator's trace and links to the attempt that died. With [Config.NewTraces] attempts have their own traces, which
// link to the publish.
//
// A message of a producer that does not trace gets the traceparent of its first failed attempt.
//
// # Logs
//
// The pipeline's log lines have the attempt's span in their context; [LogHandler] writes its ids into them, and the
// message's id into the handler's own lines.
package tracing
