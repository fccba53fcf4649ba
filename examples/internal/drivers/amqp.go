//go:build amqp

package drivers

import _ "github.com/redrive-go/redrive/brokers/rabbitmq" // what the tag is for

func init() { built = append(built, "amqp") } //nolint:gochecknoinits // a list made by build tags
