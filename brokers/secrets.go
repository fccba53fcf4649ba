package brokers

import (
	"net/url"
	"strings"
)

// secretName reports whether a parameter of this name probably holds a secret.
func secretName(name string) bool {
	name = strings.ToLower(name)
	for _, part := range []string{
		"password", "passwd", "passphrase", "pwd", "secret", "token", "credential", "apikey",
		"api_key", "api-key",
	} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// hideSecrets removes secrets of c from the text of a driver's error. Client libraries quote connection strings, and a
// driver may have missed one.
func (c Config) hideSecrets(err error, params []Param) error {
	text := err.Error()
	for _, secret := range c.secrets(params) {
		for _, form := range []string{
			secret, url.QueryEscape(secret), url.PathEscape(secret),
			url.UserPassword("", secret).String()[1:],
		} {
			text = strings.ReplaceAll(text, form, "xxxxx")
		}
	}
	if text == err.Error() {
		return err
	}
	return &redactedError{text: text, err: err}
}

// secrets lists the secret values of a resolved configuration, except those too short to be recognized in a text.
func (c Config) secrets(params []Param) []string {
	var found []string
	add := func(value string) {
		if len(value) >= 3 {
			found = append(found, value)
		}
	}
	add(c.Password)
	for _, p := range params {
		if p.Secret || secretName(p.Name) {
			add(c.Params[p.Name])
		}
	}
	u, err := parseURL(c.URL)
	if err != nil {
		return found
	}
	password, _ := u.User.Password()
	add(password)
	for name, values := range u.Query() {
		if secretName(name) {
			for _, v := range values {
				add(v)
			}
		}
	}
	return found
}

// redactedError is an error with a different text that behaves the same for errors.Is and errors.As.
type redactedError struct {
	text string
	err  error
}

func (e *redactedError) Error() string { return e.text }

func (e *redactedError) Unwrap() error { return e.err }
