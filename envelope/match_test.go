package envelope_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
)

// Patterns match as in RabbitMQ's topic exchange.
func TestMatchEvent(t *testing.T) {
	for _, tc := range []struct {
		pattern, event string
		want           bool
	}{
		{"invoice.*", "invoice.created", true},
		{"invoice.*", "invoice", false},
		{"invoice.*", "invoice.line.added", false},
		{"user.#", "user", true},
		{"user.#", "user.created", true},
		{"user.#", "user.address.changed", true},
		{"user.#", "users.created", false},
		{"#", "anything.at.all", true},
		{"#", "", true},
		{"*.created", "invoice.created", true},
		{"*.created", "created", false},
		{"#.created", "created", true},
		{"#.created", "a.b.created", true},
		{"a.#.z", "a.z", true},
		{"a.#.z", "a.b.c.z", true},
		{"a.#.z", "a.b.c", false},
		{"a.*.#", "a", false},
		{"invoice.created", "invoice.created", true},
		{"", "invoice", false},
	} {
		require.Equal(t, tc.want, envelope.MatchEvent(tc.pattern, tc.event), "%q against %q", tc.pattern, tc.event)
	}
	require.False(t, envelope.MatchEvent(strings.Repeat("#.", 1000)+"x", strings.Repeat("a.", 1000)+"y"),
		"a hostile pattern does not take forever")
}

func ExampleMatchEvent() {
	fmt.Println(envelope.MatchEvent("invoice.*", "invoice.created"))
	fmt.Println(envelope.MatchEvent("user.#", "user.address.changed"))
	fmt.Println(envelope.MatchEvent("*.created", "user.address.created"))
	// Output:
	// true
	// true
	// false
}
