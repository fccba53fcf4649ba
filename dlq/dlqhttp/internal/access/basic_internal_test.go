package access

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"
)

// An unknown user's password is compared with the slowest hash: a faster answer would reveal that the user is unknown.
// A password that has to wait for others' is given up with its request.
func TestBasic_Comparisons(t *testing.T) {
	t.Parallel()
	var users []User
	for name, cost := range map[string]int{"ana": 10, "bo": 11, "eve": 10} {
		hash, err := bcrypt.GenerateFromPassword([]byte("correct horse"), cost)
		require.NoError(t, err)
		users = append(users, User{Name: name, Role: Viewer, Bcrypt: string(hash)})
	}
	auth, err := Basic(users...)
	require.NoError(t, err)
	b, _ := auth.(*basic)
	cost, err := bcrypt.Cost([]byte(b.none))
	require.NoError(t, err)
	require.Equal(t, 11, cost)

	ask := func(ctx context.Context, user string) error {
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
		r.SetBasicAuth(user, "correct horse")
		_, err := b.Authenticate(r)
		return err
	}
	require.ErrorIs(t, ask(t.Context(), "zoe"), ErrBadCredentials, "it is the password of the slowest hash")
	require.NoError(t, ask(t.Context(), "ana"))
	for range cap(b.slots) {
		b.slots <- struct{}{}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, ask(gone, "bo"), context.Canceled)
	require.NoError(t, ask(gone, "ana"), "it was correct before")
}

// A password waits for others' comparisons as long as its client does, and is then compared only if it is still
// unknown.
func TestBasic_WaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hash, err := bcrypt.GenerateFromPassword([]byte("correct horse"), bcrypt.MinCost)
		require.NoError(t, err)
		ana := User{Name: "ana", Role: Viewer, Bcrypt: string(hash)}
		b := &basic{users: map[string]User{"ana": ana, "bo": {Name: "bo", Role: Viewer}}, slots: make(chan struct{}, 1)}
		guard, err := NewGuard(GuardConfig{Auth: []Authenticator{b}, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		ask := func(name string) int {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
			r.SetBasicAuth(name, "correct horse")
			w := httptest.NewRecorder()
			guard.Protect(http.NotFoundHandler()).ServeHTTP(w, r)
			return w.Code
		}
		b.slots <- struct{}{}
		var waiting sync.WaitGroup
		for _, name := range []string{"ana", "bo"} {
			waiting.Go(func() { assert.Equal(t, http.StatusNotFound, ask(name), name) })
		}
		time.Sleep(10 * checkTimeout)
		synctest.Wait()
		// Bo has no hash: that his password is correct has become known meanwhile.
		bo := b.users["bo"]
		b.known.put(seenKey(&bo, "correct horse"), true)
		<-b.slots
		waiting.Wait()
	})
}
