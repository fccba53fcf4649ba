// Package payload edits and compares the payloads of dead letters: jq expressions ([Compile]), which keep every byte
// that they do not touch, and differences for a person to look at ([Compare]).
package payload
