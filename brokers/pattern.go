package brokers

import (
	"strings"

	"github.com/redrive-go/redrive/envelope"
)

// MatchPattern reports whether an event name, words separated by dots, matches an AMQP topic pattern: * matches exactly
// one word, # any number of words including none.
func MatchPattern(pattern, event string) bool { return envelope.MatchEvent(pattern, event) }

// IsPattern reports whether a topic is a pattern, that is, whether one of its words is * or #.
func IsPattern(topic string) bool {
	for word := range strings.SplitSeq(topic, ".") {
		if word == "*" || word == "#" {
			return true
		}
	}
	return false
}
