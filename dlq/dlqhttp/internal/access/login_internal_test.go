package access

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A provider's name is only accepted as it is: one that looks like another person's does not get that person's role.
func TestLogin_NamesThatLookAlike(t *testing.T) {
	t.Parallel()
	l := &Login{cfg: LoginConfig{NameClaim: "name", Users: map[string]Role{"ana": Admin}, Default: Viewer}}
	who, err := l.principal(map[string]any{"name": "ana"})
	require.NoError(t, err)
	require.Equal(t, Principal{Name: "ana", Role: Admin}, who)
	for _, name := range []string{"ana\u200b", " ana", "an\u00ada", "ana\x00", "ana\xff", "", "ana\u202e"} {
		_, err := l.principal(map[string]any{"name": name})
		require.ErrorIs(t, err, ErrLogin, "%q", name)
	}
}
