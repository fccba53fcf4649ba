// Package memory is a broker in this process's memory. It gives the same guarantees as the other brokers, including
// delays and consumer groups, so that a handler's whole retry timeline can be tested without a server, and under
// testing/synctest without waiting.
//
//	broker, err := brokers.Open(ctx, "mem://")           // with import _ ".../brokers/memory"
//	broker, err := memory.New(brokers.Config{})          // the same, with Depth, Peek, Waiting and Connect
//
// # URL
//
// mem:// without host or path. Every Open creates a separate broker. Besides the parameters of every driver (see
// package brokers), which may all be written without x-:
//
//	parameter    Config field           default  meaning
//	nack-pause   Params["nack-pause"]   100ms    pause before a nacked message comes back; doubled at each further nack
//	max-message  Params["max-message"]  0        largest message in bytes, headers included, such as 1MiB; 0: no limit
//
// # Delivery semantics
//
// At least once, as long as the process lives. Each group that subscribes to a topic sees every message published from
// then on; subscribers of one group share them. Messages published before any group subscribed are kept for the first
// one. Messages are delivered in the order published if concurrency is 1 and none is nacked, delayed or retried.
// Publish copies, and every delivery is a fresh copy.
//
// A nacked message is redelivered to its group after nack-pause; others are delivered in the meantime. Messages that a
// closing subscriber returns keep their place at the front and wait for the next subscriber.
//
// With the service-bus names, topics are event names and Subscribe takes patterns of them (invoice.*, user.#). Each
// pattern that a group subscribes to is a separate queue.
//
// # How delay works
//
// Waiting messages are stored in a heap per consumer, and a subscription's timer ends when the first of them is due.
// Delays of any length are exact to the timer, and cost at most 1 KiB of memory per message plus what its payload and
// headers take. Under testing/synctest the timer runs in virtual time.
//
// # Headers
//
// All headers survive unchanged, except those made by other brokers (envelope.IsBrokerMade).
//
// # Limits
//
// Nothing survives the process, and nothing is shared between processes.
package memory
