package brokers

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// parseURL parses a broker URL. Its errors never repeat any part of the URL except the scheme: net/url quotes the part
// that it could not parse, and with an unescaped character in a password that is the password.
func parseURL(raw string) (*url.URL, error) {
	if raw == "" {
		return nil, errors.New("the URL is empty; write mem://, amqp://host:5672/, kafka://host:9092 or postgres://host/db")
	}
	if raw != strings.TrimSpace(raw) {
		return nil, errors.New("the URL has leading or trailing space")
	}
	u, err := url.Parse(raw)
	if err == nil {
		if u.Scheme == "" {
			return nil, errors.New("the URL has no scheme; write mem://, amqp://host:5672/, kafka://host:9092 or " +
				"postgres://host/db")
		}
		// It parses although a password cuts it short: in amqp://user:1#2@host/ the host is "user", the port 1, and the rest
		// would be shown in the clear.
		if u.Fragment != "" || strings.Contains(u.EscapedPath()+u.RawQuery, "@") {
			return nil, fmt.Errorf("the %s URL has an @ or # behind its host. %s", u.Scheme, encodeHint)
		}
		return u, nil
	}

	scheme, _, found := strings.Cut(raw, "://")
	if !found || strings.ContainsAny(scheme, ":/?#@ ") {
		return nil, errors.New("this is not a URL; write scheme://host")
	}
	why := "its host or port cannot be read"
	if _, escape := errors.AsType[url.EscapeError](err); escape {
		why = "it has a % that two hexadecimal digits do not follow"
	}
	return nil, fmt.Errorf("the %s URL cannot be parsed: %s. %s", scheme, why, encodeHint)
}

const encodeHint = "Special characters in a user name or password must be percent-encoded " +
	"(%23 for #, %25 for %, %2F for /, %3F for ?, %40 for @), or the password given apart in Config.Password"

// Redact returns rawURL with everything that may be a secret replaced by xxxxx: the password, the values of parameters
// whose names suggest secrets, and the secrets of those that are URLs. It is for logs and errors. A URL that cannot be
// parsed is reduced to its scheme.
func Redact(rawURL string) string {
	u, err := parseURL(rawURL)
	if err != nil {
		scheme, _, found := strings.Cut(rawURL, "://")
		if !found || strings.ContainsAny(scheme, ":/?#@ ") {
			return "(unreadable URL)"
		}
		return scheme + "://(unreadable)"
	}
	if strings.ContainsAny(u.Opaque, "@:%") { // not the file of sqlite:queue.db, which operators need to see
		return u.Scheme + ":xxxxx"
	}
	if u.RawQuery != "" {
		pairs := strings.Split(u.RawQuery, "&")
		for i, pair := range pairs {
			key, raw, _ := strings.Cut(pair, "=")
			name, badName := url.QueryUnescape(key)
			value, badValue := url.QueryUnescape(raw)
			shown := "xxxxx"
			if badName == nil && badValue == nil {
				shown = shownValue(name, value)
			}
			if shown != value {
				pairs[i] = key + "=" + url.QueryEscape(shown)
			}
		}
		u.RawQuery = strings.Join(pairs, "&")
	}
	if isToken(u) {
		u.User = url.User("xxxxx")
	}
	return withSlashes(u, u.Redacted())
}

// withSlashes returns the text of u, which net/url prints as "mem:" for mem://.
func withSlashes(u *url.URL, text string) string {
	if u.Host == "" && u.Path == "" && u.User == nil && u.Opaque == "" {
		return u.Scheme + "://" + strings.TrimPrefix(text, u.Scheme+":")
	}
	return text
}

// secretName reports whether a parameter of this name probably holds a secret.
func secretName(name string) bool {
	parts := []string{
		"password", "passwd", "passphrase", "pwd", "secret", "token", "credential", "apikey", "api_key", "api-key",
	}
	name = strings.ToLower(name)
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(name, part) })
}

// shownValue returns the value of a parameter as Redact shows it. It may be the URL of something else.
func shownValue(name, value string) string {
	user, _, at := strings.Cut(value, "@")
	switch {
	case secretName(name):
		return "xxxxx"
	case at && strings.Contains(user, ":"), strings.Contains(value, "://"):
		return Redact(value)
	default:
		return value
	}
}

// secrets lists the secret values of a resolved configuration.
func (c Config) secrets(params []Param) []string {
	found := []string{c.Password}
	for _, p := range params {
		if p.Secret || secretName(p.Name) {
			found = append(found, c.Params[p.Name])
		}
	}
	u, err := parseURL(c.URL)
	if err != nil {
		return found
	}
	for name, values := range u.Query() {
		if secretName(name) {
			found = append(found, values...)
		}
	}
	if isToken(u) {
		return append(found, u.User.Username())
	}
	password, _ := u.User.Password()
	return append(found, password)
}

// isToken reports whether the user of a URL is a token: NATS takes one without a password.
func isToken(u *url.URL) bool {
	_, given := u.User.Password()
	return u.User != nil && !given && strings.HasPrefix(u.Scheme, "nats")
}
