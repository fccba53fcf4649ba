//go:build !race

package watermill_test

const raceEnabled = false
