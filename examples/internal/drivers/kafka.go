//go:build kafka

package drivers

import _ "github.com/redrive-go/redrive/brokers/kafka" // what the tag is for

func init() { built = append(built, "kafka") } //nolint:gochecknoinits // a list made by build tags
