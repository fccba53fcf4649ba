package config

import (
	"maps"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/brokers"
)

const hidden = "xxxxx"

// Redacted returns a copy without passwords, for display.
func (c *Config) Redacted() *Config {
	out := *c
	if strings.Contains(c.Store.URL, "://") { // otherwise it is a file path
		out.Store.URL = brokers.Redact(c.Store.URL)
	}
	out.Brokers = make(map[string]Broker, len(c.Brokers))
	for name, b := range c.Brokers {
		b.URL = brokers.Redact(b.URL)
		if b.Password != "" {
			b.Password = hidden
		}
		b.Params = maps.Clone(b.Params)
		for param := range b.Params {
			if secret(param) {
				b.Params[param] = hidden
			}
		}
		out.Brokers[name] = b
	}
	out.Notifications.Receivers = slices.Clone(c.Notifications.Receivers)
	for i := range out.Notifications.Receivers {
		out.Notifications.Receivers[i].redact()
	}
	out.Server.Auth.Tokens, out.Server.Auth.Users = slices.Clone(c.Server.Auth.Tokens), slices.Clone(c.Server.Auth.Users)
	for i := range out.Server.Auth.Tokens {
		out.Server.Auth.Tokens[i].Hash = hidden
	}
	for i := range out.Server.Auth.Users {
		out.Server.Auth.Users[i].Hash = hidden
	}
	if o := c.Server.Auth.OIDC; o != nil && o.ClientSecret != "" {
		shown := *o
		shown.ClientSecret = hidden
		out.Server.Auth.OIDC = &shown
	}
	return &out
}

// secret goes by the words that the names of secret parameters contain; see brokers.Param.
func secret(param string) bool {
	for _, part := range []string{"password", "secret", "token", "credential"} {
		if strings.Contains(strings.ToLower(param), part) {
			return true
		}
	}
	return false
}
