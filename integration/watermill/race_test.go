//go:build race

package watermill_test

import "testing"

// undetected has nothing here; see its other declaration.
var undetected map[string]func(t *testing.T) faulty
