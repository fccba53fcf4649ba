// Package driver has the interface that a store of dead letters implements, [Store], its types, and the state machine
// of an entry ([Change.Apply], [Entry.Die]). All stores use it, so that they agree on which changes are legal. To write
// a store, implement Store, [Register] a [Driver] for its URL scheme, and run the suite in dlq/dlqtest. Applications
// use package dlq, which has the same types under its own name.
package driver
