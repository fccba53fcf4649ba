// Package all registers every broker driver of this module with a blank import:
//
//	import _ "github.com/redrive-go/redrive/brokers/all"
//
// It is for commands and examples that accept any broker URL. A service that runs on one broker imports only that
// driver, and compiles no other client.
package all

import (
	_ "github.com/redrive-go/redrive/brokers/kafka"    // kafka://
	_ "github.com/redrive-go/redrive/brokers/memory"   // mem://
	_ "github.com/redrive-go/redrive/brokers/nats"     // nats:// nats+tls://
	_ "github.com/redrive-go/redrive/brokers/rabbitmq" // amqp:// amqps://
	_ "github.com/redrive-go/redrive/brokers/sqlqueue" // postgres:// mysql:// sqlite:// and the SQL driver of your choice

	_ "github.com/redrive-go/redrive/brokers/watermill/amqp"      // watermill+amqp:// watermill+amqps://
	_ "github.com/redrive-go/redrive/brokers/watermill/gochannel" // gochannel://
	_ "github.com/redrive-go/redrive/brokers/watermill/kafka"     // watermill+kafka://
	_ "github.com/redrive-go/redrive/brokers/watermill/sql"       // watermill+postgres:// watermill+mysql://
)
