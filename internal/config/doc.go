// Package config is the one YAML file that the redrive command reads: the dead letter store, the brokers, the queues to
// collect, and the server. It is read strictly: an unknown key or an invalid value is an error with its line, and all
// faults are reported at once. Secrets come from elsewhere, as ${NAME}, ${NAME:-default} or
// ${file:/run/secrets/broker}.
//
//	store:
//	  url: postgres://redrive:${DB_PASSWORD}@db.internal/ops
//	brokers:
//	  rabbit:
//	    url: amqp://rabbit.internal:5672/prod
//	    username: redrive
//	    password: ${file:/run/secrets/rabbit}
//	  log:
//	    url: kafka://k1:9092,k2:9092
//	    group: redrive-collector
//	collector:
//	  sources:
//	    - {broker: rabbit, topic: orders_dlq}
//	    - {broker: log, topic: payments.DLT, origin: {consumer: payments}}
//	redrive:
//	  rate: 50
//	server:
//	  address: 127.0.0.1:8321
//
// Every key but store.url is optional. [Schema] is its JSON Schema, for editors, and explains every key: the texts are
// in the tags of the fields.
package config
