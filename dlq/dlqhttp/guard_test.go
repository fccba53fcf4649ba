package dlqhttp_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq/dlqhttp"
)

// from sends a request to the handler from an address, with a password.
func (s *server) from(t *testing.T, address, path, user, password string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	r.RemoteAddr = address + ":4711"
	if user != "" {
		r.SetBasicAuth(user, password)
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w
}

func guarded(t *testing.T, change ...func(*dlqhttp.Config)) *server {
	t.Helper()
	users := dlqhttp.AuthenticatorFunc(func(r *http.Request) (dlqhttp.Principal, error) { // as slow as a test can bear
		switch name, password, given := r.BasicAuth(); {
		case !given:
			return dlqhttp.Principal{}, dlqhttp.ErrNoCredentials
		case password != "correct horse":
			return dlqhttp.Principal{}, dlqhttp.ErrBadCredentials
		case name == "root":
			return dlqhttp.Principal{Name: name, Role: dlqhttp.Admin}, nil
		default:
			return dlqhttp.Principal{Name: name, Role: dlqhttp.Viewer}, nil
		}
	})
	return unserved(t, append(change, func(c *dlqhttp.Config) {
		c.Auth = append(bearer(t), users)
		c.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	})...)
}

// unserved is a server without a listener, for virtual time: a bound in time must not depend on the machine's speed.
func unserved(t *testing.T, change ...func(*dlqhttp.Config)) *server {
	t.Helper()
	s := newConfigured(t, nil, change...)
	var err error
	s.handler, err = dlqhttp.New(s.cfg)
	require.NoError(t, err)
	return s
}

// Passwords cannot be guessed on any route: wrong ones count, are logged, and soon are not checked any more, so that
// the right one gets the same answer.
func TestGuard_GuessingOnEveryRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, path := range []string{
			"/readyz", "/metrics", "/api/v1/me", "/api/v1/docs", "/api/v1/openapi.json", "/",
			"/entries", "/static/style.css", "/nothing",
		} {
			s := guarded(t)
			statuses := map[int]int{}
			for range 25 {
				statuses[s.from(t, "192.0.2.1", path, "root", "guess").Code]++
			}
			require.Len(t, statuses, 2, path)
			require.LessOrEqual(t, statuses[http.StatusUnauthorized], 21, path)
			require.Positive(t, statuses[http.StatusTooManyRequests], path)
			right := s.from(t, "192.0.2.1", path, "root", "correct horse")
			require.Equal(t, http.StatusTooManyRequests, right.Code, path)
			require.Equal(t, 26, strings.Count(s.log.String(), `msg="credentials refused"`), path)
			require.Contains(t, s.log.String(), "account=root", path)
			require.NotContains(t, s.log.String(), "guess", path)
			require.NotContains(t, s.log.String(), "horse", path)

			// Guesses from many addresses count too, by account.
			for i := range 5 {
				other := s.from(t, fmt.Sprintf("198.51.100.%d", i), path, "root", "guess")
				require.Equal(t, http.StatusTooManyRequests, other.Code, path)
			}
			require.NotContains(t, []int{http.StatusTooManyRequests, http.StatusUnauthorized},
				s.from(t, "198.51.100.9", path, "ana", "correct horse").Code, path)
		}
	})
}

// Guesses at the same time are no more than one after another: each counts before its check, which is slow. Correct
// passwords do not count.
func TestGuard_GuessingAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var checked atomic.Int64
		slow := dlqhttp.AuthenticatorFunc(func(r *http.Request) (dlqhttp.Principal, error) {
			checked.Add(1)
			time.Sleep(100 * time.Millisecond) // virtual
			if _, password, _ := r.BasicAuth(); password != "correct horse" {
				return dlqhttp.Principal{}, dlqhttp.ErrBadCredentials
			}
			return dlqhttp.Principal{Name: "root", Role: dlqhttp.Admin}, nil
		})
		s := unserved(t, func(c *dlqhttp.Config) { c.Auth = []dlqhttp.Authenticator{slow} })
		for range 100 {
			require.Equal(t, http.StatusOK, s.from(t, "192.0.2.2", "/api/v1/me", "root", "correct horse").Code)
		}
		checked.Store(0)
		var guesses sync.WaitGroup
		for range 300 {
			guesses.Go(func() { s.from(t, "192.0.2.1", "/api/v1/me", "root", "guess") })
		}
		guesses.Wait()
		require.Equal(t, int64(20), checked.Load())
		require.Equal(t, http.StatusTooManyRequests, s.from(t, "192.0.2.3", "/api/v1/me", "root", "guess").Code)
		require.Equal(t, http.StatusOK, s.from(t, "192.0.2.3", "/api/v1/me", "bo", "correct horse").Code)
	})
}

// Passwords that are correct do not count against each other while they are checked, whether they come from a proxy or
// from a program that opens many connections: what is left must only last for one.
func TestGuard_CorrectAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var inFlight, most atomic.Int64
		slow := dlqhttp.AuthenticatorFunc(func(r *http.Request) (dlqhttp.Principal, error) {
			most.Store(max(most.Load(), inFlight.Add(1)))
			defer inFlight.Add(-1)
			time.Sleep(50 * time.Millisecond) // virtual
			switch name, password, _ := r.BasicAuth(); {
			case r.Header.Get("X-Panic") != "":
				panic(http.ErrAbortHandler)
			case password != "correct horse":
				return dlqhttp.Principal{}, dlqhttp.ErrBadCredentials
			default:
				return dlqhttp.Principal{Name: name, Role: dlqhttp.Admin}, nil
			}
		})
		s := unserved(t, func(c *dlqhttp.Config) { c.Auth, c.Rate = []dlqhttp.Authenticator{slow}, 1_000 })
		for _, wrong := range []int{0, 19} {
			for range wrong {
				require.Equal(t, http.StatusUnauthorized, s.from(t, "192.0.2.1", "/api/v1/me", "root", "guess").Code)
			}
			var answers [60]int
			var requests sync.WaitGroup
			for i := range answers {
				requests.Go(func() { answers[i] = s.from(t, "192.0.2.1", "/api/v1/me", "root", "correct horse").Code })
			}
			requests.Wait()
			for _, status := range answers {
				require.Equal(t, http.StatusOK, status, "after %d wrong ones", wrong)
			}
			require.LessOrEqual(t, most.Load(), int64(4), "one address must not occupy the authenticator")
		}
		for range 100 {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/me", nil)
			r.Header.Set("X-Panic", "yes")
			r.SetBasicAuth("root", "correct horse")
			require.Panics(t, func() { s.handler.ServeHTTP(httptest.NewRecorder(), r) }, "it does not count")
		}
	})
}

// An account's name cannot write its own lines into the log.
func TestGuard_AccountInTheLog(t *testing.T) {
	s := guarded(t)
	s.from(t, "192.0.2.1", "/api/v1/me", "x\n\x1b[31mlevel=ERROR", "y")
	require.NotContains(t, s.log.String(), "\x1b")
	require.NotContains(t, s.log.String(), "\nlevel=ERROR")
}

// A caller's user names are kept to count guesses, but cannot fill the memory or the log, however long they are.
func TestGuard_LongAccounts(t *testing.T) {
	s := guarded(t)
	used := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := used()
	for i := range 500 {
		s.from(t, fmt.Sprintf("192.0.2.%d", i%250), "/readyz", fmt.Sprintf("%04d%s", i, strings.Repeat("x", 40_000)), "y")
	}
	require.Less(t, used()-before, int64(4<<20), "the names have 20 MB")
	runtime.KeepAlive(s)
}

// Health checks without credentials query the components once per interval, however many there are, and reveal nothing
// about a password.
func TestGuard_AnonymousHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		s := guarded(t, func(c *dlqhttp.Config) {
			c.Health = func(context.Context) (h dlqhttp.Health) {
				asked.Add(1)
				h.Add("store", nil, dlqhttp.Component{Collected: 7})
				return h
			}
		})
		first := s.from(t, "192.0.2.1", "/readyz", "", "")
		for range 200 {
			w := s.from(t, "192.0.2.1", "/readyz", "", "")
			require.Equal(t, http.StatusOK, w.Code)
			require.Equal(t, first.Body.String(), w.Body.String())
		}
		require.Equal(t, int64(1), asked.Load())
		require.NotContains(t, first.Body.String(), "7")
		require.Equal(t, http.StatusUnauthorized, s.from(t, "192.0.2.1", "/readyz", "root", "guess").Code)
		require.Equal(t, int64(1), asked.Load())
		require.Contains(t, s.from(t, "192.0.2.1", "/readyz", "root", "correct horse").Body.String(), "7")
	})
}
