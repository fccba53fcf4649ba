package config

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
)

// OIDC is an OpenID provider with which people log in.
type OIDC struct {
	Issuer       string            `yaml:"issuer" jsonschema:"required,description=The provider: https://login.example."`
	ClientID     string            `yaml:"client_id" jsonschema:"required,description=Id of this server at the provider."`
	ClientSecret string            `yaml:"client_secret" jsonschema:"description=Secret of this server; empty for a public client."`
	Scopes       []string          `yaml:"scopes" jsonschema:"description=Scopes to request; openid profile email groups if not given."`
	NameClaim    string            `yaml:"name_claim" jsonschema:"description=Claim that appears in the audit log; email if not given."`
	GroupsClaim  string            `yaml:"groups_claim" jsonschema:"description=Claim with the groups; groups if not given."`
	Users        map[string]string `yaml:"users" jsonschema:"description=Roles of users."`
	Groups       map[string]string `yaml:"groups" jsonschema:"description=Roles of groups; a user in several has the highest."`
	DefaultRole  string            `yaml:"default_role" jsonschema:"description=Role of people in neither; they are refused if not given.,enum=viewer,enum=operator,enum=approver,enum=admin"`
	Session      time.Duration     `yaml:"session" jsonschema:"description=How long a session lasts; 8h if not given."`
}

// Login returns how people log in; nil without a provider. The sessions are in the store.
func (s *Server) Login(store dlq.Store) (*dlqhttp.Login, error) {
	if s.Auth.OIDC == nil {
		return nil, nil //nolint:nilnil // no login is configured
	}
	cfg, err := s.Auth.OIDC.login()
	if err != nil {
		return nil, err
	}
	cfg.PublicURL, cfg.Store = s.PublicURL, store
	return dlqhttp.NewLogin(cfg)
}

// login converts it to dlqhttp's.
func (o *OIDC) login() (dlqhttp.LoginConfig, error) {
	users, faultsOfUsers := rolesOf(o.Users, dlqhttp.ParseRole)
	groups, faultsOfGroups := rolesOf(o.Groups, dlqhttp.ParseRole)
	least, err := roleOf(o.DefaultRole)
	return dlqhttp.LoginConfig{
		Issuer: o.Issuer, ClientID: o.ClientID, ClientSecret: o.ClientSecret, Scopes: o.Scopes, NameClaim: o.NameClaim,
		GroupsClaim: o.GroupsClaim, Users: users, Groups: groups, Default: least, Session: o.Session,
	}, errors.Join(faultsOfUsers, faultsOfGroups, err)
}

// roleOf parses a role that may be left out.
func roleOf(text string) (role dlqhttp.Role, err error) {
	if text != "" {
		role, err = dlqhttp.ParseRole(text)
	}
	return role, err
}

func rolesOf(texts map[string]string, parse func(string) (dlqhttp.Role, error)) (map[string]dlqhttp.Role, error) {
	roles := make(map[string]dlqhttp.Role, len(texts))
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		role, err := parse(texts[name])
		roles[name], errs = role, append(errs, err)
	}
	return roles, errors.Join(errs...)
}
