package envelope

import "strings"

// MatchEvent reports whether an event name, words separated by dots, matches an AMQP topic pattern: * matches exactly
// one word, # any number of words including none. Its cost is bounded by the product of both lengths, whatever the
// pattern.
func MatchEvent(pattern, event string) bool {
	words := strings.Split(event, ".")
	// reached[i] reports whether the pattern so far can match the first i words.
	reached := make([]bool, len(words)+1)
	reached[0] = true
	for part := range strings.SplitSeq(pattern, ".") {
		if part == "#" {
			for i := range words {
				reached[i+1] = reached[i+1] || reached[i]
			}
			continue
		}
		for i := len(words); i > 0; i-- {
			reached[i] = reached[i-1] && (part == "*" || part == words[i-1])
		}
		reached[0] = false
	}
	return reached[len(words)]
}
