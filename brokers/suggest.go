package brokers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/internal/suggest"
)

// unknownParam reports the known parameters and, for a probable typo, which one was meant. The value is left out: it
// may be a misplaced secret.
func unknownParam(where, name string, known []string) error {
	known = slices.Sorted(slices.Values(known))
	list := "there are none"
	if len(known) > 0 {
		list = "known are " + strings.Join(known, ", ")
	}
	hint := ""
	if best := suggest.Nearest(name, known); best != "" {
		hint = fmt.Sprintf("did you mean %s? ", best)
	}
	return fmt.Errorf("%s: unknown parameter %q: %s%s", where, name, hint, list)
}
