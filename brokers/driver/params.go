package driver

import (
	"strconv"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// NackPause is the parameter of every driver whose users may change how long a nacked message is held back. The engine
// reads it; without it the pause is the default.
func NackPause() brokers.Param {
	return brokers.Param{
		Name: "nack-pause", Type: brokers.Duration, Default: "100ms", Min: int64(time.Millisecond), Max: int64(time.Minute),
		Doc: "Pause before a nacked message is delivered again; doubled by each further nack, up to 64 times.",
	}
}

// DefaultCrashLimit is how often a message may end its process before it is a dead letter.
const DefaultCrashLimit = 5

// CrashLimit is the parameter of every driver whose broker counts deliveries. The engine reads it; without it
// [DefaultCrashLimit] applies.
func CrashLimit() brokers.Param {
	return brokers.Param{
		Name: "crash-limit", Type: brokers.Int, Default: strconv.Itoa(DefaultCrashLimit), Max: 1_000_000,
		Doc: "How often a message may kill its process before it is dead-lettered; 0 means that it never is. A message " +
			"that was delivered twice without an answer runs alone.",
	}
}
