// Package payload edits and compares the payloads of dead letters: with jq expressions ([Edit]), which keep every
// byte that they do not change, and as differences for people ([Compare]).
package payload
