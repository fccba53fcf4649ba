package brokers_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory" // registers mem://
	"github.com/redrive-go/redrive/envelope"
)

func ExampleOpen() {
	ctx := context.Background()
	broker, err := brokers.Open(ctx, "mem://?group=billing&concurrency=4")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer broker.Close()

	orders, err := broker.Subscriber().Subscribe(ctx, "orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := broker.Publisher().Publish("orders", message.NewMessage("1", []byte("a book"))); err != nil {
		fmt.Println(err)
		return
	}
	m := <-orders
	fmt.Printf("%s\n", m.Payload)
	m.Ack()
	// Output:
	// a book
}

// A program that logs with Watermill gives its logger to the broker as well.
func ExampleWithLogger() {
	logger := watermill.NewStdLogger(false, false)
	broker, err := brokers.Open(context.Background(), "mem://", brokers.WithLogger(envelope.SlogLogger(logger)))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(broker.Close())
	// Output:
	// <nil>
}

// All faults are reported at once, each with its remedy.
func ExampleOpen_faults() {
	_, err := brokers.Open(context.Background(), "mem://?gruop=billing&concurrency=none&x-naming=symfony")
	fmt.Println(err)
	_, err = brokers.Open(context.Background(), "amqps://app:secret@rabbit:5671/")
	fmt.Println(errors.Is(err, brokers.ErrUnknownScheme))
	// Output:
	// brokers: open mem://: URL: unknown parameter "gruop": did you mean group? known are concurrency, dead, dead-exchange, delayed, delays, drain, exchange, group, max-message, nack-pause, name, naming, project, publish-timeout, queue, refuse-unrouted, retry, retry-exchange
	// parameter concurrency="none": must be a whole number such as 20
	// naming: unknown preset "symfony": known are default, delayed-backoff, laravel, service-bus, store-only, ttl-cycle
	// true
}

func ExampleOpenConfig() {
	broker, err := brokers.OpenConfig(context.Background(), brokers.Config{
		URL:    "mem://",
		Group:  "billing",
		Naming: brokers.Laravel(),
		Delays: []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second},
		Params: brokers.Params{"nack-pause": "1s"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(broker.Ping(context.Background()), broker.Close())
	// Output:
	// <nil> <nil>
}

// A program without global state uses its own Mux.
func ExampleMux() {
	var mux brokers.Mux
	mux.Register("mem", memory.Driver{})
	broker, err := mux.Open(context.Background(), "mem://")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(mux.Schemes(), broker.Close())
	// Output:
	// [mem] <nil>
}

// A broker that cannot meet the needs is refused at start.
func ExampleRequire() {
	broker, err := brokers.Open(context.Background(), "mem://")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer broker.Close()
	fmt.Println(brokers.Require(broker, brokers.Needs{Groups: true, Delays: []time.Duration{time.Hour}}))
	fmt.Println(brokers.Require(broker, brokers.Needs{Durable: true}))
	// Output:
	// <nil>
	// brokers: mem: not supported by this broker: it forgets its messages when it stops: open a broker that keeps them, such as amqp://, kafka:// or postgres://, or do not ask for Durable
}

func ExampleNameScheme() {
	for _, scheme := range []brokers.NameScheme{
		brokers.DefaultNames(),
		brokers.ServiceBus("easyweek"),
		{Preset: "laravel", Dead: "{queue}_failed"}, // a preset with one name changed
	} {
		names := scheme.For("orders", "invoice-service")
		fmt.Println(names.Queue, names.Retry(8*time.Second), names.Dead)
	}
	// Output:
	// orders.invoice-service orders.invoice-service_retry.8000 orders.invoice-service_dlq
	// easyweek.invoice-service easyweek.invoice-service.retry.8000 easyweek.invoice-service.failed
	// orders orders_retry.8000 orders_failed
}

func ExampleRedact() {
	fmt.Println(brokers.Redact("amqp://app:secret@rabbit:5672/?heartbeat=5"))
	// Output:
	// amqp://app:xxxxx@rabbit:5672/?heartbeat=5
}

func ExampleLookup() {
	driver, ok := brokers.Lookup("mem")
	fmt.Println(ok)
	for _, p := range driver.Params() {
		fmt.Println(p.Name, p.Default)
	}
	// Output:
	// true
	// nack-pause 100ms
	// max-message 0
	// *
}
