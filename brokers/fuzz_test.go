package brokers_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
)

// Neither an error nor a redacted URL shows the password, escaped or not.
func FuzzRedact_NoPassword(f *testing.F) {
	for _, password := range []string{
		"hush", "p@ss", "a/b", "1#b", "1?b", "%zz", "%41", ":", "a b", "x\x00y", "[::1]",
		"é", "a&b=c", "1/x@y", "?=", "a@b?c",
	} {
		f.Add(password)
	}
	f.Fuzz(func(t *testing.T, password string) {
		const marker = "hunter2"
		secret := password + marker
		for _, user := range []string{secret, url.QueryEscape(secret)} {
			raw := "amqp://app:" + user + "@rabbit/?heartbeat=x&prefetch=y"
			require.NotContains(t, brokers.Redact(raw), marker, "Redact(%q)", raw)
			_, err := brokers.Config{URL: raw}.Resolve(params)
			require.Error(t, err, "prefetch=y is invalid")
			require.NotContains(t, err.Error(), marker, "Resolve(%q)", raw)
			require.NotContains(t, brokers.Config{URL: raw, Password: secret}.String(), marker)
		}
	})
}

// A scheme that Validate accepts returns names without a panic and without remains of its templates.
func FuzzNameScheme(f *testing.F) {
	for _, template := range []string{
		"{topic}_dlq", "{queue}{.group}", "x{.group", "{", "}", "{}", "{topic}{topic}",
		"{{x}}", "{a{.b}c}", "{..group}",
	} {
		f.Add(template, "orders", "billing")
	}
	f.Fuzz(func(t *testing.T, template, topic, group string) {
		s := brokers.NameScheme{Dead: template}
		if s.Validate() != nil {
			return
		}
		dead := s.For(topic, group).Dead
		if !strings.ContainsAny(topic+group, "{}") {
			require.False(t, strings.ContainsAny(dead, "{}"), "%q returned %q", template, dead)
		}
	})
}
