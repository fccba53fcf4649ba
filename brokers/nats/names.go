package nats

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"
)

// place is where the messages of a topic are stored.
type place struct {
	subject string // of the topic
	token   string // the topic as one token of a subject, and as the name of a stream
}

// ours is the first token of the subjects that no producer publishes to.
const ours = "redrive"

func placeOf(topic string) place {
	return place{subject: subjectOf(topic), token: tokenOf(topic)}
}

// again is the subject that only the consumer of group reads.
func (p place) again(group string) string { return ours + "." + p.token + "." + again(group) }

func again(group string) string { return "again." + tokenOf(group) }

// wait is the subject of one schedule: the server keeps one for each subject.
func (p place) wait(kind, id string) string { return ours + "." + p.token + ".wait." + kind + "." + id }

// all are the subjects that are not the topic's.
func (p place) all() string { return ours + "." + p.token + ".>" }

// maxToken bounds names of streams and consumers: they are file names too.
const maxToken = 180

// tokenOf makes a token that no other name makes. Points become pluses, as they separate tokens.
func tokenOf(name string) string {
	var b strings.Builder
	for i := range len(name) {
		switch c := name[i]; {
		case c == '.':
			b.WriteByte('+')
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "=%02X", c)
		}
	}
	if b.Len() <= maxToken {
		return b.String()
	}
	sum := sha256.Sum256([]byte(name))
	return b.String()[:maxToken-33] + "=" + hex.EncodeToString(sum[:16]) // no = is followed by so many digits else
}

// nameOf is the reverse of tokenOf. A shortened token is returned as it is.
func nameOf(token string) string {
	name, err := url.PathUnescape(strings.NewReplacer("=", "%", "+", ".").Replace(token))
	if err != nil || len(token) == maxToken {
		return token
	}
	return name
}

// subjectOf is the topic itself if it can be a subject without wildcards.
func subjectOf(topic string) string {
	var b strings.Builder
	for i := range len(topic) {
		c := topic[i]
		emptyToken := c == '.' && (i == 0 || i == len(topic)-1 || topic[i-1] == '.')
		if c <= ' ' || c == 0x7f || c == '*' || c == '>' || c == '=' || c == '$' && i == 0 || emptyToken {
			fmt.Fprintf(&b, "=%02X", c)
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}
