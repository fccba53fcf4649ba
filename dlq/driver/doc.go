// Package driver is the interface of dead letter stores and its types: an [Entry] and its [Body], what a listing
// selects, and the changes with their state machine ([Change.Apply], [Entry.Die]), so that all stores agree on what
// is legal. Applications use package dlq, which has the same types under its own name.
package driver
