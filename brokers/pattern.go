package brokers

import (
	"strings"

	"github.com/redrive-go/redrive/envelope"
)

// MatchPattern reports whether an event name, words separated by dots, matches an AMQP topic pattern: * stands for
// exactly one word, # for any number of words, none included.
func MatchPattern(pattern, event string) bool { return envelope.MatchEvent(pattern, event) }

// IsPattern reports whether a topic is a pattern: one of its words, between dots, is * or #.
func IsPattern(topic string) bool {
	for word := range strings.SplitSeq(topic, ".") {
		if word == "*" || word == "#" {
			return true
		}
	}
	return false
}
