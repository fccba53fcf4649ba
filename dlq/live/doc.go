// Package live tells the dashboard what a service is doing now: what its handlers have, which retries wait and until
// when, and which circuits are open. It also lets an operator pause the service's intake. A [Monitor] is the pipeline's
// observer, the gate in front of its subscribers, and a report to the dead letter store every few seconds; the answer
// to a report reports whether intake is paused:
//
//	monitor, err := live.New(live.Config{Service: "billing", Store: letters.Store()})
//	pipeline, err := middleware.New(middleware.Config{Observer: monitor, ...})
//	router.AddConsumerHandler("charge", "orders", monitor.Subscriber(broker.Subscriber()), charge)
//	go func() { _ = monitor.Run(ctx) }()
//
// A store that does not respond changes nothing: intake stays as it is, and the dashboard shows how old the last report
// is.
package live
