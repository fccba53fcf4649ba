// Package spool keeps lines in local files until they are drained: dead letters wait here while their store does not
// respond. A line that [Spool.Append] has accepted survives a crash and a power loss. Start with [Open].
package spool
