package access_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/driver"
)

// people is a store of sessions.
type people struct {
	driver.PeopleStore

	sessions map[string]driver.Session
}

func (p *people) Session(_ context.Context, digest string, at time.Time) (*driver.Session, error) {
	s, ok := p.sessions[digest]
	if !ok || !at.Before(s.ExpiresAt) {
		return nil, driver.ErrNotFound
	}
	return &s, nil
}

func (p *people) PutSession(_ context.Context, s driver.Session) error {
	p.sessions[s.Digest] = s
	return nil
}

// Guesses of cookies from an address, which may be a proxy's, end no session of other users there.
func TestSessions_GuessedByOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := access.NewSessions(&people{sessions: map[string]driver.Session{}}, time.Hour, false)
		answer := httptest.NewRecorder()
		require.NoError(t, s.Begin(t.Context(), answer, access.Principal{Name: "ana", Role: access.Operator}))
		ask := func(cookie string) error {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("Cookie", cookie)
			_, err := s.Authenticate(r)
			return err
		}
		cookie := answer.Header().Get("Set-Cookie")
		require.NoError(t, ask(cookie))
		for range 60 {
			for n := range 10 {
				require.ErrorIs(t, ask(fmt.Sprintf("redrive_session=guess-%d", n)), access.ErrNoCredentials)
			}
			time.Sleep(time.Second) // virtual
			synctest.Wait()
			require.NoError(t, ask(cookie))
		}
		time.Sleep(time.Hour) // virtual
		synctest.Wait()
		require.ErrorIs(t, ask(cookie), access.ErrNoCredentials, "it has expired")
	})
}
