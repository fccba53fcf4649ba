// Package rabbitmq is the amqp:// and amqps:// driver.
package rabbitmq
