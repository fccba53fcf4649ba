// Package spool keeps lines in local files until they are drained: what the dead letters wait in while their store does
// not answer. A line that [Spool.Append] has taken survives a crash and a power loss. Begin with [Open].
package spool
