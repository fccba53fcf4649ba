// Package envelope is the message layout that everything else rests on: one immutable value for every message, whoever produced
// it and in whichever of two lossless modes it travels, and the fast paths that a pipeline uses to read and record its state.
package envelope
