package access

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

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
