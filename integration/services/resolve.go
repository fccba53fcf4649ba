package services

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// UnavailableError means that the environment names no server and none is installed.
type UnavailableError struct {
	// "rabbitmq", "rabbitmq4", "postgres", "mariadb", "mysql" or "kafka", as integration/install.sh calls it
	Service string
	Env     string // the variable that names a running server
	Cause   error
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("services: no %s found (%v): run integration/install.sh %s, or set %s to a server of yours "+
		"(shared tests only)",
		e.Service, e.Cause, e.Service, e.Env)
}

func (e *UnavailableError) Unwrap() error { return e.Cause }

// required reports whether a missing server is a failure.
func required(service string) bool {
	return os.Getenv("REQUIRE_SERVICES") == "1" &&
		!slices.Contains(strings.Split(os.Getenv("OPTIONAL_SERVICES"), ","), service)
}

// Need ends a test if err is not nil: it skips the test if the server is not installed and REQUIRE_SERVICES is not 1 or
// OPTIONAL_SERVICES names the server, and otherwise fails it.
func Need(t testing.TB, err error) {
	t.Helper()
	var unavailable *UnavailableError
	switch {
	case err == nil:
	case errors.As(err, &unavailable) && !required(unavailable.Service):
		t.Skip(err.Error())
	default:
		t.Fatal(err)
	}
}

// closer is any server.
type closer interface{ Close() error }

// own starts a server for this test only, and closes it at the end of the test.
func own[S closer, C any](t testing.TB, cfg C, start func(context.Context, C) (S, error)) S {
	t.Helper()
	s, err := start(t.Context(), cfg)
	Need(t, err)
	t.Cleanup(func() {
		if logs, ok := any(s).(interface{ Log() string }); ok && t.Failed() {
			t.Logf("the end of the server's log:\n%s", logs.Log())
		}
		if err := s.Close(); err != nil {
			t.Errorf("close the server: %v", err)
		}
	})
	return s
}

// closers end the shared servers; Main runs them.
var closers = struct {
	sync.Mutex
	all []func() error
}{}

// lazy starts a shared server when the first test needs it.
type lazy[S closer] struct {
	once   sync.Once
	server S
	err    error
}

// get returns the server, which start starts.
func (l *lazy[S]) get(t testing.TB, start func(context.Context) (S, error)) S {
	t.Helper()
	l.once.Do(func() {
		if l.server, l.err = start(context.Background()); l.err != nil {
			return
		}
		closers.Lock()
		defer closers.Unlock()
		closers.all = append(closers.all, l.server.Close)
	})
	Need(t, l.err)
	return l.server
}

// scratch creates something on a server for the test, under a new name, and drops it at the end. It returns the
// server's URL with the name as its path.
func scratch(t testing.TB, server string, create, drop func(ctx context.Context, name string) error) string {
	t.Helper()
	name := "test_" + strings.ToLower(rand.Text()[:10])
	Need(t, create(t.Context(), name))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := drop(ctx, name); err != nil {
			t.Logf("%s is not dropped: %v", name, err) // the test may have killed the server
		}
	})
	u, err := parseURL(server)
	Need(t, err)
	u.Path = "/" + name
	return u.String()
}

// parseURL returns an error without the URL, which may have a password.
func parseURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, errors.New("services: the server's URL cannot be parsed")
	}
	return u, nil
}

// Main runs the tests of a package, stops the shared servers, and exits:
//
//	func TestMain(m *testing.M) { services.Main(m) }
//
// Without it the servers also die with the test process, but their directories are not removed.
func Main(m *testing.M) {
	code := m.Run()
	if err := CloseShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// CloseShared stops the shared servers, for a TestMain that does more than Main. They must not be used afterwards.
func CloseShared() error {
	closers.Lock()
	defer closers.Unlock()
	var errs []error
	for _, stop := range closers.all {
		errs = append(errs, stop())
	}
	closers.all = nil
	return errors.Join(errs...)
}
