// Package middleware retries, defers, skips or dead-letters messages whose handler fails, without blocking the messages
// behind them and without losing one.
package middleware
