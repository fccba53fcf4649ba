// Package driver is the seam between a message broker and Redrive: it defines what a broker has to be able to do, and
// none of what users are promised. The promises of brokers.Broker (handles and their closing, delays, pauses, crash
// suspects, dead letter routing, the size budget) are implemented once, above this seam, for every broker.
//
// # How to write a transport
//
// Implement [Transport] and [Stream], about 400 lines, and turn them into a brokers.Broker with package portable:
//
//	func (d Driver) Open(ctx context.Context, cfg brokers.Config) (brokers.Broker, error) {
//		t, err := dial(ctx, cfg)
//		if err != nil {
//			return nil, err
//		}
//		return portable.New(portable.Config{Config: cfg, Params: d.Params(), Transport: t})
//	}
//
// then run package brokertest against it. docs/writing-a-driver.md walks through one. Package memory is the smallest
// complete example; package drivertest has a transport that fails on demand.
//
// A transport stays simple by following four rules:
//
//   - It reports events and decides nothing. It reports a refused publication, a lost session or a delivery that may
//     have killed a process, and the engine chooses between another try, a pause, a retry and a dead letter.
//   - It keeps no timers for us, except where the broker itself waits (a due time, a lease).
//   - It never drops a message. A message that it cannot decode is dispatched with its raw bytes; one that it cannot
//     store is refused.
//   - Every call returns soon after its context has ended.
//
// # Delays
//
// [Outgoing.Due] requests that a message be dispatched at a later time. A transport has three ways to do this:
//
//   - It keeps the time natively (a SQL row with a due time, a heap in memory), and hands the message out then.
//   - It supports only certain durations (a queue or topic for each). It chooses one with [Steps], hands the message
//     out early, and returns in [Delivery.Rest] how long is left: the engine publishes the message again for the rest.
//     Set [Traits.Early]: the engine then writes envelope.KeyNotBefore, and [Rest] reads it.
//   - It cannot wait. Then Capabilities.MaxDelay is 0, and the engine keeps waiting messages in another broker, the
//     Delays of portable.Config. A delay without one is refused with brokers.ErrUnsupported.
//
// # One delivery
//
//	Next -> Delivery -> (Rest? publish again and ack) -> (Suspects? alone) -> handler -> Settle(Ack | Nack | Release)
//
// Deliveries that Next has returned and that are not settled yet are in flight. The engine keeps at most [Queue.Window]
// of a stream in flight and at most [Queue.Concurrency] in handlers. Every delivery is settled exactly once, unless the
// stream ends first: messages in flight are then redelivered, on this stream's successor or in another process.
package driver
