package dlqtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// Tokens are found by their digest, have unique names, and can be used and revoked; the audit log has everything except
// their use.
func testTokens(t *testing.T, db Database) {
	t.Helper()
	store := db.open(t)
	s, ok := driver.As[driver.PeopleStore](store)
	require.True(t, ok)
	token := driver.Token{
		Name: "ci é", Role: "operator", Digest: "sha256:1", CreatedAt: noon, CreatedBy: "ana", ExpiresAt: noon.Add(time.Hour),
	}
	require.NoError(t, s.PutToken(t.Context(), token))
	for _, other := range []driver.Token{
		{Name: token.Name, Role: "viewer", Digest: "sha256:2", CreatedAt: noon, CreatedBy: "ana"},
		{Name: "other", Role: "viewer", Digest: token.Digest, CreatedAt: noon, CreatedBy: "ana"},
	} {
		require.ErrorIs(t, s.PutToken(t.Context(), other), dlq.ErrConflict)
	}
	require.ErrorIs(t, s.PutToken(t.Context(), driver.Token{Name: "x"}), dlq.ErrInvalid)
	got := must(s.Token(t.Context(), token.Digest))(t)
	require.Equal(t, &token, got)
	require.True(t, got.Valid(noon))
	require.False(t, got.Valid(noon.Add(time.Hour)))
	_, err := s.Token(t.Context(), "sha256:3")
	require.ErrorIs(t, err, dlq.ErrNotFound)
	require.NoError(t, s.UseToken(t.Context(), token.Digest, noon.Add(time.Minute)))
	require.NoError(t, s.RevokeToken(t.Context(), token.Name, dlq.By{Actor: "bob", Note: "left"}, noon.Add(2*time.Minute)))
	require.ErrorIs(t, s.RevokeToken(t.Context(), token.Name, dlq.By{Actor: "bob"}, noon), dlq.ErrNotFound)
	require.ErrorIs(t, s.RevokeToken(t.Context(), "none", dlq.By{Actor: "bob"}, noon), dlq.ErrNotFound)
	all := must(s.Tokens(t.Context()))(t)
	token.UsedAt, token.RevokedAt, token.RevokedBy = noon.Add(time.Minute), noon.Add(2*time.Minute), "bob"
	require.Equal(t, []driver.Token{token}, all)
	require.False(t, all[0].Valid(noon))
	records := recorded(t, store, dlq.AuditFilter{}, dlq.Page{})
	require.Len(t, records, 2)
	require.Equal(t, []any{driver.ActionRevokeToken, "bob", "left"},
		[]any{records[0].Action, records[0].Actor, records[0].Note})
}

// A session exists for every process until it expires or ends.
func testSessions(t *testing.T, db Database) {
	t.Helper()
	s, ok := driver.As[driver.PeopleStore](db.open(t))
	require.True(t, ok)
	other, ok := driver.As[driver.PeopleStore](db.open(t))
	require.True(t, ok)
	session := driver.Session{
		Digest: "d1", Name: "ana é", Role: "approver", CreatedAt: noon, ExpiresAt: noon.Add(time.Hour),
	}
	require.NoError(t, s.PutSession(t.Context(), session))
	require.Equal(t, &session, must(other.Session(t.Context(), "d1", noon))(t))
	_, err := other.Session(t.Context(), "d1", noon.Add(time.Hour))
	require.ErrorIs(t, err, dlq.ErrNotFound)
	later := driver.Session{
		Digest: "d2", Name: "bob", Role: "viewer", CreatedAt: noon.Add(2 * time.Hour),
		ExpiresAt: noon.Add(3 * time.Hour),
	}
	require.NoError(t, other.PutSession(t.Context(), later))
	_, err = s.Session(t.Context(), "d1", noon)
	require.ErrorIs(t, err, dlq.ErrNotFound, "removed because it has expired")
	require.NoError(t, s.EndSession(t.Context(), "d2"))
	require.NoError(t, s.EndSession(t.Context(), "d2"))
	_, err = other.Session(t.Context(), "d2", noon.Add(2*time.Hour))
	require.ErrorIs(t, err, dlq.ErrNotFound)
	require.ErrorIs(t, s.PutSession(t.Context(), driver.Session{Digest: "d3"}), dlq.ErrInvalid)
}

// Records that change no entry are stored all or none.
func testRecord(t *testing.T, db Database) {
	t.Helper()
	store := db.open(t)
	s, ok := driver.As[driver.RecordStore](store)
	require.True(t, ok)
	read := driver.AuditRecord{
		At: noon, Actor: "ana", Action: driver.ActionRead, EntryID: 7, Detail: map[string]string{"as": "é"},
	}
	require.ErrorIs(t, s.Record(t.Context(), read, driver.AuditRecord{Actor: "ana"}), dlq.ErrInvalid)
	require.NoError(t, s.Record(t.Context()))
	require.NoError(t, s.Record(t.Context(), read))
	records := recorded(t, store, dlq.AuditFilter{}, dlq.Page{})
	require.Len(t, records, 1)
	records[0].ID = 0
	require.Equal(t, read, records[0])
}
