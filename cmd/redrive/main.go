// Command redrive operates dead letters: it collects them from brokers into a store, lists, searches and groups them,
// and sends them back to where they came from.
//
//	redrive demo                                     # everything in memory, with traffic and failures
//	redrive dlq list --topic orders --store dead-letters.db
//	redrive dlq redrive --topic orders --rate 50 --canary 1,10,100 --config redrive.yaml
//	redrive serve --config redrive.yaml
//
// Data go to stdout and everything else to stderr; redrive help exit-codes explains the exit codes.
package main

import "os"

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
