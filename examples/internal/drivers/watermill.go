//go:build watermill

package drivers

import (
	_ "github.com/redrive-go/redrive/brokers/watermill/amqp" // what the tag is for
	_ "github.com/redrive-go/redrive/brokers/watermill/gochannel"
	_ "github.com/redrive-go/redrive/brokers/watermill/kafka"
	_ "github.com/redrive-go/redrive/brokers/watermill/sql"
)

func init() { built = append(built, "watermill") } //nolint:gochecknoinits // a list made by build tags
