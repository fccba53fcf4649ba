package notify

// For tests.
var (
	Sign = sign
	Key  = key
)
