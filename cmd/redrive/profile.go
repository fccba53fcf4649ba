package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers/brokerconfig"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
)

// profile is a server and the credentials for it.
type profile struct {
	Server   string `yaml:"server"`
	Token    string `yaml:"token"`
	User     string `yaml:"user"`
	Password string `yaml:"password"`
	// CA is a PEM file with the authority of the server's certificate, where the system does not know it.
	CA string `yaml:"ca"`
}

// profilesPath is $REDRIVE_PROFILES, or redrive/profiles.yaml in the user's configuration directory.
func profilesPath() (string, error) {
	if path := os.Getenv("REDRIVE_PROFILES"); path != "" {
		return path, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "redrive", "profiles.yaml"), nil
}

// profile finds the server to work with; nil means the store itself. A flag wins over the environment.
func (a *app) profile() (*profile, error) {
	server, name := a.flags.server, a.flags.profile
	if local := a.flags.store != "" || a.flags.config != "" || len(a.flags.brokers) > 0; local {
		if server != "" || name != "" {
			return nil, usagef("--server and --profile work on a server, which has its own store, configuration and brokers: " +
				"leave one or the other out")
		}
		return nil, nil //nolint:nilnil // no server is not an error
	}
	if server == "" && name == "" {
		server, name = os.Getenv("REDRIVE_SERVER"), os.Getenv("REDRIVE_PROFILE")
	}
	var p profile
	if name != "" {
		found, err := loadProfile(name)
		if err != nil {
			return nil, err
		}
		p = *found
	}
	if server != "" {
		p.Server = server
	}
	if p.Server == "" {
		return nil, nil //nolint:nilnil // no server is not an error
	}
	return &p, a.credentials(&p)
}

// credentials adds those of --token-file and $REDRIVE_TOKEN. A token is not a flag: every user of the machine sees the
// flags of a process.
func (a *app) credentials(p *profile) error {
	if a.flags.tokenFile != "" {
		data, err := os.ReadFile(a.flags.tokenFile)
		if err != nil {
			return usagef("--token-file: %v", err)
		}
		p.Token = strings.TrimSpace(string(data))
	} else if token := os.Getenv("REDRIVE_TOKEN"); token != "" {
		p.Token = token
	}
	u, err := url.Parse(p.Server)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return usagef("the server is a URL such as https://ops.example:8321")
	}
	if u.User != nil {
		return usagef("the server's URL has a user or password: put them into a profile, or a token into $REDRIVE_TOKEN")
	}
	if loopback, _ := dlqhttp.IsLoopback(withPort(u)); u.Scheme == "http" && !loopback &&
		(p.Token != "" || p.Password != "") {
		a.hint("warning: %s is not encrypted: anyone on the network can read the token", u.Redacted())
	}
	return nil
}

func withPort(u *url.URL) string {
	if u.Port() != "" {
		return u.Host
	}
	return u.Host + ":80"
}

// loadProfile reads a profile of the file.
func loadProfile(name string) (*profile, error) {
	path, err := profilesPath()
	if err != nil {
		return nil, usagef("--profile %s: %v", name, err)
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, usagef("--profile %s: there is no %s: write profiles: {%s: {server: https://..., token: "+
			"\"${REDRIVE_TOKEN}\"}}", name, path, name)
	}
	if err != nil {
		return nil, usagef("--profile %s: %v", name, err)
	}
	var file struct {
		Profiles map[string]*profile `yaml:"profiles"`
	}
	if err := brokerconfig.Decode(data, &file); err != nil {
		return nil, usagef("%s: %v", path, err)
	}
	p := file.Profiles[name]
	if p == nil || p.Server == "" {
		return nil, usagef("--profile %s: %s has no server under this name", name, path)
	}
	info, err := os.Stat(path)
	if err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 && (p.Token != "" || p.Password != "") {
		return nil, usagef("%s has a token and other users may read it: chmod 600 %s", path, path)
	}
	return p, nil
}

// client is the HTTP client for the server.
func (p *profile) client() (*http.Client, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = 5 * time.Minute
	if p.CA != "" {
		pem, err := os.ReadFile(p.CA)
		if err != nil {
			return nil, usagef("ca: %v", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, usagef("ca: %s has no certificate in PEM form", p.CA)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: transport, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		return fmt.Errorf("the server redirects to %s: give that as --server", r.URL.Redacted())
	}}, nil
}
