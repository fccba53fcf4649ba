// Package secrets keeps passwords out of errors: client libraries quote addresses and connection strings.
package secrets

import (
	"net/url"
	"strings"
)

// Hide replaces secrets in the text of an error by xxxxx, also in the forms that they have in a URL. errors.Is and
// errors.As still see the original. Secrets that are too short to be recognized in a text are ignored.
func Hide(err error, secrets ...string) error {
	text := err.Error()
	for _, secret := range secrets {
		if len(secret) < 3 {
			continue
		}
		inUser := url.UserPassword("", secret).String()[1:]
		for _, form := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret), inUser} {
			text = strings.ReplaceAll(text, form, "xxxxx")
		}
	}
	if text == err.Error() {
		return err
	}
	return &hidden{text, err}
}

// hidden is an error with another text.
type hidden struct {
	text string
	err  error
}

func (e *hidden) Error() string { return e.text }

func (e *hidden) Unwrap() error { return e.err }
