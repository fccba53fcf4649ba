package dlq

// Exported is an entry with every revision of its body, in the order of their numbers.
type Exported struct {
	// Entry is as it is in the store, without Body. RedriveOf is not set.
	Entry  Entry
	Bodies []Body
}
