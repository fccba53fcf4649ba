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

// prefix is the first token of the subjects that are ours: no producer publishes to them.
const prefix = "redrive"

func placeOf(topic string) place { return place{subject: subjectOf(topic), token: tokenOf(topic)} }

// retries is the subject of a group's retries, which only its consumer reads.
func (p place) retries(group string) string {
	return prefix + "." + p.token + "." + retriesToken(group)
}

func retriesToken(group string) string { return "again." + tokenOf(group) }

// schedule is the subject of one schedule. The server keeps one schedule for each subject.
func (p place) schedule(kind, id string) string {
	return prefix + "." + p.token + ".wait." + kind + "." + id
}

// ownSubjects matches the subjects that we add to the topic's.
func (p place) ownSubjects() string { return prefix + "." + p.token + ".>" }

// maxToken bounds the names of streams and consumers, which are file names too.
const maxToken = 180

// tokenOf converts a name to a token, different for every name. Dots, which separate tokens, become pluses.
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
	return b.String()[:maxToken-33] + "=" + hex.EncodeToString(sum[:16]) // elsewhere = is followed by two digits
}

// nameOf is the reverse of tokenOf. It returns a shortened token unchanged.
func nameOf(token string) string {
	name, err := url.PathUnescape(strings.NewReplacer("=", "%", "+", ".").Replace(token))
	if err != nil || len(token) == maxToken {
		return token
	}
	return name
}

// subjectOf returns the topic, with the characters escaped that cannot be in a subject or are wildcards.
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
