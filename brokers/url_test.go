package brokers_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
)

func TestOpen_NeverShowsAPassword(t *testing.T) {
	for _, url := range []string{
		"amqp://user:hu%crsh@h/", // net/url quotes the escape with what follows it
		"amqp://user:hu/sh@h/",
		"amqp://user:1/hush@h/",
		"amqp://user:1#hush@h/",
		"amqp://user:1?hush@h/",
		"amqp://user:hu#sh@h/",
		"amqp://user:hush@h:port/",
		"mysql://user:hush@tcp(h:3306)/db",
		"://user:hush@h",
		"user:hush@h",
		"amqp ://user:hush@h",
		"amqp://user:hush@h/\x7f",
		" amqp://user:hush@h/",
	} {
		t.Run(url, func(t *testing.T) {
			_, err := brokers.Open(t.Context(), url)
			require.Error(t, err)
			require.NotRegexp(t, "(?i)hush|hu%|crsh|:hu|sh@", err.Error())
			require.NotRegexp(t, "(?i)hush|hu%|crsh|:hu|sh@", brokers.Redact(url))
		})
	}
}

func TestOpen_ExplainsFaultsOfAURL(t *testing.T) {
	for url, want := range map[string]string{
		"":                 "the URL is empty; write mem://",
		"/queue":           "the URL has no scheme",
		"amqp://h:5672/\n": "the URL has leading or trailing space",
		"amqp://u:%zz@h/": "a % that two hexadecimal digits do not follow. Special characters in a user name or password " +
			"must be percent-encoded (%23 for #",
		"amqp://u:a/b@h/":  "its host or port cannot be read",
		"amqp://u:1#b@h/":  "has an @ or # behind its host",
		"mem://host":       "mem:// and no host or path",
		"mem://?nack-pau=": "did you mean nack-pause?",
	} {
		t.Run(url, func(t *testing.T) {
			_, err := brokers.Open(t.Context(), url)
			require.ErrorContains(t, err, want)
		})
	}
}

func TestRedact(t *testing.T) {
	for url, want := range map[string]string{
		"mem://":                               "mem://",
		"mem://?group=a":                       "mem://?group=a",
		"amqp://u:p@h:5672/vh?heartbeat=5":     "amqp://u:xxxxx@h:5672/vh?heartbeat=5",
		"kafka://a:1,b:2?sasl-password=x&g=y":  "kafka://a:1,b:2?sasl-password=xxxxx&g=y",
		"postgres://h/db?sslpassword=p&user=u": "postgres://h/db?sslpassword=xxxxx&user=u",
		"sqlite:///data/q.db":                  "sqlite:///data/q.db",
		"nats://token@h:4222":                  "nats://xxxxx@h:4222",
		"nats+tls://token@h":                   "nats+tls://xxxxx@h",
		"nats://u:p@h":                         "nats://u:xxxxx@h",
		"amqp://u@h":                           "amqp://u@h",
		"amqp:user:p@h":                        "amqp:xxxxx",
		"amqp:user%3Ap%40h":                    "amqp:xxxxx",
		"sqlite:queue.db?password=p":           "sqlite:queue.db?password=xxxxx",
		"amqp://u:p/@h":                        "amqp://(unreadable)",
		// A password in the URL of a parameter was shown.
		"amqp://h/?management=http%3A%2F%2Fu%3Ap%40h&x=1": "amqp://h/?management=http%3A%2F%2Fu%3Axxxxx%40h&x=1",
		"amqp://h/?management=u%3Ap%40h":                  "amqp://h/?management=u%3Axxxxx",
		"amqp://h/?management=http://h:15672":             "amqp://h/?management=http://h:15672",
		"not a URL":                                       "(unreadable URL)",
	} {
		require.Equal(t, want, brokers.Redact(url), url)
	}
}
