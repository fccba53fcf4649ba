//go:build nats

package drivers

import _ "github.com/redrive-go/redrive/brokers/nats" // what the tag is for

func init() { built = append(built, "nats") } //nolint:gochecknoinits // a list made by build tags
