package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokerconfig"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redact"
	"github.com/redrive-go/redrive/internal/config"
)

const defaultConfig = "redrive.yaml"

// configuration reads the file, if there is one, and applies flags and environment to it.
func (a *app) configuration() (*config.Config, error) {
	if a.cfg != nil {
		return a.cfg, nil
	}
	cfg, err := a.read(config.Load)
	a.cfg = cfg
	return cfg, err
}

// configPath is the path of the file, empty without one.
func (a *app) configPath() string {
	path := cmp.Or(a.flags.config, os.Getenv("REDRIVE_CONFIG"))
	if _, err := os.Stat(defaultConfig); err == nil && cmp.Or(path, a.flags.store, os.Getenv("REDRIVE_STORE")) == "" {
		return defaultConfig
	}
	return path
}

func (a *app) read(load func(string) (*config.Config, error)) (*config.Config, error) {
	path, store := a.configPath(), cmp.Or(a.flags.store, os.Getenv("REDRIVE_STORE"))
	cfg := &config.Config{Brokers: map[string]config.Broker{}}
	if path != "" {
		var err error
		if cfg, err = load(path); err != nil {
			return nil, usagef("%v", err)
		}
	}
	if store != "" {
		cfg.Store = config.Store{URL: store}
	}
	cfg.Store.Schema = cmp.Or(a.flags.schema, os.Getenv("REDRIVE_SCHEMA"), cfg.Store.Schema)
	cfg.Store.Archive = cmp.Or(a.flags.archive, os.Getenv("REDRIVE_ARCHIVE"), cfg.Store.Archive)
	if err := a.addBrokers(cfg); err != nil {
		return nil, err
	}
	return cfg, nil
}

// addBrokers adds those of --broker and $REDRIVE_BROKER.
func (a *app) addBrokers(cfg *config.Config) error {
	given := a.flags.brokers
	if env := os.Getenv("REDRIVE_BROKER"); len(given) == 0 && env != "" {
		given = strings.Fields(env)
	}
	for _, text := range given {
		name, url, named := strings.Cut(text, "=")
		if !named || strings.ContainsAny(name, ":/") {
			name, _, _ = strings.Cut(text, ":")
			url = text
		}
		if cfg.Brokers == nil {
			cfg.Brokers = map[string]config.Broker{}
		}
		if _, taken := cfg.Brokers[name]; taken {
			return usagef("--broker %s: the name is taken: write another=URL", name)
		}
		b := brokers.Config{URL: url, Name: "redrive"}
		cfg.Brokers[name] = config.Broker{Config: b, Outcome: collector.OutcomeConfirmed}
	}
	return nil
}

// open opens the store, and creates or updates its tables. No pipeline of this process has dead letters, so there is no
// spool.
func (a *app) open(ctx context.Context) (*dlq.Letters, error) {
	return a.openStore(ctx, func(url string) string { return url })
}

// withoutMigration adds migrate=false to a store's URL, unless it has the parameter.
func withoutMigration(url string) string {
	if strings.Contains(url, "migrate=") {
		return url
	}
	if strings.Contains(url, "?") {
		return url + "&migrate=false"
	}
	return url + "?migrate=false"
}

func (a *app) openStore(ctx context.Context, edit func(url string) string) (*dlq.Letters, error) {
	if a.letters != nil {
		return a.letters, nil
	}
	cfg, err := a.configuration()
	if err != nil {
		return nil, err
	}
	address, err := a.storeAddress(cfg)
	if err != nil {
		return nil, err
	}
	opts := []dlq.Option{dlq.WithoutSpool(), dlq.WithLogger(a.logger())}
	if a.metrics != nil {
		opts = append(opts, dlq.WithObserver(a.metrics.letters))
	}
	letters, err := dlq.Open(ctx, edit(address), opts...)
	if err != nil {
		return nil, err
	}
	a.letters = letters
	a.onClose(letters.Close)
	return letters, nil
}

// storeAddress is the URL of the store, which must be given.
func (a *app) storeAddress(cfg *config.Config) (string, error) {
	if cfg.Store.URL == "" {
		fault := "no store"
		if p, err := a.profile(); err != nil || p != nil {
			fault = "this works on the store itself, not through a server"
		}
		return "", usagef("%s: give --store URL, or --config FILE, or set REDRIVE_STORE", fault)
	}
	address, err := cfg.Store.Address()
	if err != nil {
		return "", usagef("store: %v", err)
	}
	return address, nil
}

// openExisting is open for commands that read and change: an empty store created for a mistyped name would show no dead
// letters, and a newer command would change the tables under a service. serve, demo, migrate and dlq import create and
// update them.
func (a *app) openExisting(ctx context.Context) (*dlq.Letters, error) {
	cfg, err := a.configuration()
	if err != nil || a.makesStore {
		return a.open(ctx)
	}
	if path := missingFile(cfg.Store.URL); path != "" {
		return nil, &codedError{exitNotFound, fmt.Sprintf("there is no store %s; redrive migrate creates one", path)}
	}
	return a.openStore(ctx, withoutMigration)
}

// missingFile is the path in the URL of a SQLite file that does not exist, and that opening would create.
func missingFile(address string) string {
	u, err := driver.ParseURL(address)
	if address == "" || err != nil || !strings.HasPrefix(u.Scheme, "sqlite") {
		return ""
	}
	path, _, _ := strings.Cut(cmp.Or(u.Opaque, u.Host+u.Path), "?")
	_, err = os.Stat(path)
	if path == "" || strings.Contains(path, ":memory:") || !errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return path
}

// checkBrokers refuses brokers that other processes cannot reach, and those with an invalid configuration.
func (a *app) checkBrokers() error {
	for _, name := range a.cfg.Names() {
		b := a.cfg.Brokers[name]
		if b.Scheme() == memory.Scheme {
			return usagef("broker %s: a mem:// broker ends with this command, and so do its messages", name)
		}
		if err := brokers.CheckConfig(b.Operating()); err != nil {
			return fmt.Errorf("broker %s: %w", name, err)
		}
	}
	return nil
}

// lateBrokers are the brokers of the configuration, by name, each opened when it is needed.
func (a *app) lateBrokers(ctx context.Context) (map[string]brokers.Broker, error) {
	if err := a.checkBrokers(); err != nil {
		return nil, err
	}
	opened := make(map[string]brokers.Broker, len(a.cfg.Brokers))
	for name, configured := range a.cfg.Brokers {
		operating := configured.Operating()
		operating.Logger = a.logger()
		life, cancel := context.WithCancelCause(ctx)
		b := &lateBroker{
			name: name, logger: operating.Logger, ctx: life, cancel: cancel, tried: make(chan struct{}),
			open: func(ctx context.Context) (brokers.Broker, error) { return brokers.OpenConfig(ctx, operating) },
		}
		a.onClose(b.Close)
		opened[name] = b
	}
	return opened, nil
}

func newRouter(
	cfg *config.Config, letters *dlq.Letters, opened map[string]brokers.Broker, logger *slog.Logger,
) (*collector.Router, error) {
	r := collector.RouterConfig{Store: letters.Store(), Logger: logger}
	for _, name := range cfg.Names() {
		if opened[name] == nil {
			continue // doctor opens those that answer
		}
		b := cfg.Brokers[name]
		t := collector.Target{Name: name, Scheme: b.Scheme(), Redriver: opened[name], Outcome: b.Outcome}
		if !b.IsQueueBroker() {
			t.Publisher = opened[name].Publisher()
		}
		r.Targets = append(r.Targets, t)
	}
	return collector.NewRouter(r)
}

// logger logs warnings only, unless the configuration says otherwise.
func (a *app) logger() *slog.Logger {
	log := config.Log{Level: "warn"}
	var rules *redact.Rules
	if a.cfg != nil {
		if a.cfg.Log.Level != "" {
			log = a.cfg.Log
		}
		rules, _, _ = a.cfg.Redaction.Rules() // checked by Validate
	}
	return log.Logger(a.err, a.colourful(a.err), rules)
}

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
	given := a.flags.store + a.flags.schema + a.flags.archive + a.flags.config + strings.Join(a.flags.brokers, "")
	if server == "" && name == "" && given == "" {
		server, name = os.Getenv("REDRIVE_SERVER"), os.Getenv("REDRIVE_PROFILE")
	}
	if local := server == "" && name == ""; local && a.flags.tokenFile != "" || !local && given != "" {
		return nil, usagef("--server, --profile and --token-file are for a server, which has its own store, configuration " +
			"and brokers: leave one or the other out")
	}
	var p profile
	if name != "" {
		found, err := loadProfile(name)
		if err != nil {
			return nil, err
		}
		p = *found
	}
	if p.Server = cmp.Or(server, p.Server); p.Server == "" {
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
	host := net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "80"))
	if loopback, _ := dlqhttp.IsLoopback(host); u.Scheme == "http" && !loopback &&
		(p.Token != "" || p.Password != "") {
		a.hint("warning: %s is not encrypted: anyone on the network can read the token", u.Redacted())
	}
	return nil
}

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
