//go:build race

package rabbitmq_test

const raceEnabled = true
