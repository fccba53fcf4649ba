package access

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// ProxyConfig specifies the headers of an authenticating reverse proxy. They are only trusted when the connection comes
// from the proxy, which must remove them from what clients send.
type ProxyConfig struct {
	// From are the addresses of the proxy: 10.0.0.7, 10.0.0.0/8. Required.
	From []string
	// UserHeader has the user's name. Defaults to X-Forwarded-User.
	UserHeader string
	// GroupsHeader has the user's groups, separated by commas. Defaults to X-Forwarded-Groups.
	GroupsHeader string
	// Users and Groups are the roles of users and members of groups; the highest counts.
	Users, Groups map[string]Role
	// Default is the role of users in neither. None refuses them.
	Default Role
}

type proxy struct {
	cfg  ProxyConfig
	from []netip.Prefix
}

// Proxy authenticates by the headers of a reverse proxy.
func Proxy(cfg ProxyConfig) (Authenticator, error) {
	cfg.UserHeader = cmp.Or(cfg.UserHeader, "X-Forwarded-User")
	cfg.GroupsHeader = cmp.Or(cfg.GroupsHeader, "X-Forwarded-Groups")
	p := &proxy{cfg: cfg}
	var errs []error
	if len(cfg.From) == 0 {
		errs = append(errs, errors.New("proxy: from is required: the addresses that the proxy connects from, "+
			"otherwise anyone could claim to be anyone"))
	}
	for _, text := range cfg.From {
		prefix, err := parsePrefix(text)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("proxy: from: %q is not an address such as 10.0.0.7 or 10.0.0.0/8", text))
		case prefix.Bits() == 0:
			errs = append(errs, fmt.Errorf("proxy: from: %q is everyone, who could then claim to be anyone", text))
		default:
			p.from = append(p.from, prefix)
		}
	}
	if len(cfg.Users)+len(cfg.Groups) == 0 && cfg.Default <= None {
		errs = append(errs, errors.New("proxy: no one has a role: give users, groups or default_role"))
	}
	return p, errors.Join(errs...)
}

func parsePrefix(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	return prefix.Masked(), err
}

// Authenticate trusts the headers of the proxy, and of no other sender.
func (p *proxy) Authenticate(r *http.Request) (Principal, error) {
	addr, ok := remote(r)
	if !ok {
		return Principal{}, ErrNoCredentials
	}
	trusted := slices.ContainsFunc(p.from, func(from netip.Prefix) bool { return from.Contains(addr) })
	names := r.Header.Values(p.cfg.UserHeader)
	if !trusted || len(names) == 0 {
		return Principal{}, ErrNoCredentials
	}
	name := names[0]
	if len(names) > 1 || !Proper(name) {
		return Principal{}, fmt.Errorf("%w: the proxy sends no single, readable %s", ErrBadCredentials, p.cfg.UserHeader)
	}
	role := max(p.cfg.Default, p.cfg.Users[name])
	for _, header := range r.Header.Values(p.cfg.GroupsHeader) {
		for group := range strings.SplitSeq(header, ",") {
			role = max(role, p.cfg.Groups[strings.TrimSpace(group)])
		}
	}
	return Principal{Name: name, Role: role}, nil
}

// remote is the address that the connection comes from.
func remote(r *http.Request) (netip.Addr, bool) {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}, false
	}
	addr, err := netip.ParseAddr(host)
	return addr.Unmap(), err == nil
}
