// Package live shows on the dashboard the messages in a service's handlers, the retries that wait and when they are
// due, and the open circuits. It also lets an operator pause the service's intake. A [Monitor] is the pipeline's
// observer and the gate in front of its subscribers. It reports to the dead letter store every few seconds; the reply
// includes whether intake is paused:
//
//	monitor, err := live.New(live.Config{Service: "billing", Store: letters.Store()})
//	pipeline, err := middleware.New(middleware.Config{Observer: monitor, ...})
//	router.AddConsumerHandler("charge", "orders", monitor.Subscriber(broker.Subscriber()), charge)
//	go func() { _ = monitor.Run(ctx) }()
//
// A store that does not respond changes nothing: intake stays as it is, and the dashboard shows how old the last report
// is.
package live
