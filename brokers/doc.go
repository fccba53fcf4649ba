// Package brokers opens a message broker from a URL and defines what every broker must do for Redrive: publish with a
// confirm, delay messages, return a failed message to the one consumer that failed, and store dead letters.
//
// A program imports the drivers that it may use and opens the one that its operator selects:
//
//	import (
//		"github.com/redrive-go/redrive/brokers"
//		_ "github.com/redrive-go/redrive/brokers/memory"
//	)
//
//	broker, err := brokers.Open(ctx, os.Getenv("BROKER_URL")) // mem://, amqp://, kafka://, postgres://
//	...
//	router.AddConsumerHandler("billing", "orders", broker.Subscriber(), handleOrder)
//
// Handlers stay plain Watermill handlers: [Broker.Publisher] and [Broker.Subscriber] are a message.Publisher and a
// message.Subscriber, and a handler does not depend on the broker it runs on.
//
// # URL
//
// A broker URL is the backend's own URI. Our parameters are written x-<name>, or just <name> if the backend's URI has
// no parameter of that name. Every driver supports these:
//
//	parameter          Config field     default            meaning
//	x-name             Name             program's name     how the broker's own tools show this client
//	x-group            Group            driver's           consumer group of every subscriber
//	x-concurrency      Concurrency      1                  handlers that run at once, per subscription
//	x-drain            DrainTimeout     25s                how long Close waits for running handlers
//	x-publish-timeout  PublishTimeout   10s                how long a publish may wait for the broker's confirm
//	x-delays           Delays           none               delays to prepare, as 10s,20s,40s
//	x-refuse-unrouted  RefuseUnrouted   false              an event that no service subscribes to is an error
//	x-naming           Naming.Preset    default            naming scheme: default, laravel, delayed-backoff, ...
//	x-project          Naming.Project   none               {project} in the names of the scheme
//	x-exchange         Naming.Exchange  scheme's           template: where producers publish
//	x-queue            Naming.Queue     scheme's           template: what one consumer reads
//	x-retry            Naming.Retry     scheme's           template: where a message waits for its retry
//	x-retry-exchange   Naming.RetryExchange  scheme's      template
//	x-delayed          Naming.Delayed   scheme's           template: where a message waits for its first delivery
//	x-dead             Naming.Dead      scheme's           template: where dead letters are kept
//	x-dead-exchange    Naming.DeadExchange   scheme's      template
//
// A driver's own parameters are listed in its package comment. An unknown parameter is an error that names the known
// ones, values are parsed strictly, and all faults are reported at once. The URL overrides the Config, so that code
// provides defaults and the operator has the last word. No error and no log line shows a password.
//
// # Writing a driver
//
// Implement the Transport of package driver, turn it into a [Broker] with package portable, register a [Driver] that
// does so, and run package brokertest against it. The guarantees to users are implemented above the transport, the same
// for every broker.
//
// Five methods are optional and found by the packages that need them, the last two by brokermetrics:
//
//	RescheduleAll(ctx, []envelope.Origin, []*message.Message) []error    many redrives in one call
//	                                                                     (redrive.BatchRedriver): one error for each
//	                                                                     message, nil only for what the broker has
//	                                                                     confirmed
//	Depths                                                               how many messages wait: see [DepthReporter]
//	Readers                                                              how many consumers read what a redrive goes to:
//	                                                                     see [ReaderCounter]
//	Counts() (connections, channels int)                                 what it has open at the broker
//	AcksFailed() uint64                                                  handled messages, since Open, to be redelivered
//	                                                                     because their ack did not reach the broker
package brokers
