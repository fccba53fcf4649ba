// Package driver is the seam between a message broker and Redrive: what a broker has to be able to do, and nothing of
// what users are promised. The promises of brokers.Broker (handles and their closing, delays, pauses, crash suspects,
// dead letter routing, the size budget) are kept once, above this seam, for every broker alike.
//
// # How to write a transport
//
// Implement [Transport] and [Stream], about 400 lines, and make a brokers.Broker of it with package portable:
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
// A transport stays simple by keeping to four rules:
//
//   - It reports what happened and decides nothing. A refused publication, a lost session, a delivery that may have
//     ended a process: it reports each, and the engine chooses between another try, a pause, a retry and a dead letter.
//   - It keeps no timers for us, but where the broker itself waits (a due time, a lease).
//   - It never drops a message. What it cannot decode it hands out with its raw bytes; what it cannot keep it refuses.
//   - Every call returns soon after its context has ended.
//
// # Who waits
//
// [Outgoing.Due] asks that a message be handed out at a later time. A transport has three ways to answer:
//
//   - It keeps the time natively (a SQL row with a due time, a heap in memory), and hands the message out then.
//   - It can wait for some durations only (a queue or topic for each). It chooses one with [Steps], hands the message
//     out early, and says in [Delivery.Rest] how long is left: the engine publishes the message again for the rest. Set
//     [Traits.Early]: the engine then writes envelope.KeyNotBefore, and [Rest] reads it.
//   - It cannot wait. Then Capabilities.MaxDelay is 0, and the engine keeps what must wait in another broker, the
//     Delays of portable.Config. A delay without one is refused with brokers.ErrUnsupported.
//
// # One delivery
//
//	Next -> Delivery -> (Rest? publish again and ack) -> (Suspects? alone) -> handler -> Settle(Ack | Nack | Release)
//
// Deliveries that have been returned by Next and not been settled are in hand. The engine keeps at most [Queue.Window]
// of a stream in hand and at most [Queue.Concurrency] in handlers. Every delivery is settled exactly once, unless the
// stream ends first: what is in hand then comes again, on this stream's successor or in another process.
package driver
