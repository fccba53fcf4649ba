//go:build race

package watermill_test

import "testing"

// undetected is empty here; see its other declaration.
var undetected map[string]func(t *testing.T) faulty
