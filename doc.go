// Package redrive is the root of a framework on Watermill for Go services that consume messages: what happens when they
// fail. It holds no code; start with one of these packages.
//
//   - envelope: the layout of a message, whoever produced it and on whatever broker
//   - middleware: the pipeline that retries without blocking, dead-letters and defers
//   - brokers: RabbitMQ, Kafka, a SQL database or memory, opened by URL, below the same handlers
//   - dlq: dead letters as data, and what an operator does with them
//
// middleware, brokers and dlq do not know each other. They meet in the program that uses them:
//
//	broker, err := brokers.Open(ctx, os.Getenv("BROKER_URL")) // mem://, amqp://, kafka://, postgres://
//	letters, err := dlq.Open(ctx, os.Getenv("DLQ_URL"))       // a SQLite file by default
//	pipeline, err := middleware.New(middleware.Config{Rescheduler: broker, DeadLetters: letters})
//	router.AddMiddleware(pipeline.Middleware)
//	router.AddConsumerHandler("orders", "orders", broker.Subscriber(), handleOrder)
package redrive
