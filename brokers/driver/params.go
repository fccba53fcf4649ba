package driver

import (
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
