package config

import (
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
	o := s.Auth.OIDC
	if o == nil {
		return nil, nil //nolint:nilnil // no login is configured
	}
	users, err := rolesOf(o.Users)
	if err != nil {
		return nil, err
	}
	groups, err := rolesOf(o.Groups)
	if err != nil {
		return nil, err
	}
	var least dlqhttp.Role
	if o.DefaultRole != "" {
		if least, err = dlqhttp.ParseRole(o.DefaultRole); err != nil {
			return nil, err
		}
	}
	return dlqhttp.NewLogin(dlqhttp.LoginConfig{
		Issuer: o.Issuer, ClientID: o.ClientID, ClientSecret: o.ClientSecret, PublicURL: s.PublicURL, Scopes: o.Scopes,
		NameClaim: o.NameClaim, GroupsClaim: o.GroupsClaim, Users: users, Groups: groups, Default: least, Session: o.Session,
		Store: store,
	})
}

// roles are all roles that the provider's users can have.
func (s *Server) roles() map[string]string {
	all := map[string]string{}
	if o := s.Auth.OIDC; o != nil {
		for name, role := range o.Users {
			all["user "+name] = role
		}
		for name, role := range o.Groups {
			all["group "+name] = role
		}
		if o.DefaultRole != "" {
			all["default"] = o.DefaultRole
		}
	}
	return all
}

func rolesOf(texts map[string]string) (map[string]dlqhttp.Role, error) {
	roles := make(map[string]dlqhttp.Role, len(texts))
	for name, text := range texts {
		role, err := dlqhttp.ParseRole(text)
		if err != nil {
			return nil, err
		}
		roles[name] = role
	}
	return roles, nil
}
