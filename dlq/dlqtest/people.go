package dlqtest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// Tokens are found by their digest, have unique names, and can be used and revoked; the audit log has everything except
// their use.
func testTokens(w *world) {
	s, ok := driver.As[driver.PeopleStore](w.Store)
	require.True(w, ok)
	token := driver.Token{
		Name: "ci é", Role: "operator", Digest: "sha256:1", CreatedAt: noon, CreatedBy: "ana", ExpiresAt: noon.Add(time.Hour),
	}
	require.NoError(w, s.PutToken(w.Context(), token))
	for _, other := range []driver.Token{
		{Name: token.Name, Role: "viewer", Digest: "sha256:2", CreatedAt: noon, CreatedBy: "ana"},
		{Name: "other", Role: "viewer", Digest: token.Digest, CreatedAt: noon, CreatedBy: "ana"},
	} {
		require.ErrorIs(w, s.PutToken(w.Context(), other), dlq.ErrConflict)
	}
	require.ErrorIs(w, s.PutToken(w.Context(), driver.Token{Name: "x"}), dlq.ErrInvalid)
	got := must(s.Token(w.Context(), token.Digest))(w)
	require.Equal(w, &token, got)
	require.True(w, got.Valid(noon))
	require.False(w, got.Valid(noon.Add(time.Hour)))
	_, err := s.Token(w.Context(), "sha256:3")
	require.ErrorIs(w, err, dlq.ErrNotFound)
	require.NoError(w, s.UseToken(w.Context(), token.Digest, noon.Add(time.Minute)))
	require.NoError(w, s.RevokeToken(w.Context(), token.Name, dlq.By{Actor: "bob", Note: "left"}, noon.Add(2*time.Minute)))
	require.ErrorIs(w, s.RevokeToken(w.Context(), token.Name, dlq.By{Actor: "bob"}, noon), dlq.ErrNotFound)
	require.ErrorIs(w, s.RevokeToken(w.Context(), "none", dlq.By{Actor: "bob"}, noon), dlq.ErrNotFound)
	all := must(s.Tokens(w.Context()))(w)
	token.UsedAt, token.RevokedAt, token.RevokedBy = noon.Add(time.Minute), noon.Add(2*time.Minute), "bob"
	require.Equal(w, []driver.Token{token}, all)
	require.False(w, all[0].Valid(noon))
	records := w.recorded(dlq.AuditFilter{}, dlq.Page{})
	require.Len(w, records, 2)
	require.Equal(w, []any{driver.ActionRevokeToken, "bob", "left"},
		[]any{records[0].Action, records[0].Actor, records[0].Note})
}

// A session exists for every process until it expires or ends.
func testSessions(w *world) {
	s, ok := driver.As[driver.PeopleStore](w.Store)
	require.True(w, ok)
	other, ok := driver.As[driver.PeopleStore](w.open())
	require.True(w, ok)
	session := driver.Session{
		Digest: "d1", Name: "ana é", Role: "approver", CreatedAt: noon, ExpiresAt: noon.Add(time.Hour),
	}
	require.NoError(w, s.PutSession(w.Context(), session))
	require.Equal(w, &session, must(other.Session(w.Context(), "d1", noon))(w))
	_, err := other.Session(w.Context(), "d1", noon.Add(time.Hour))
	require.ErrorIs(w, err, dlq.ErrNotFound)
	later := driver.Session{
		Digest: "d2", Name: "bob", Role: "viewer", CreatedAt: noon.Add(2 * time.Hour),
		ExpiresAt: noon.Add(3 * time.Hour),
	}
	require.NoError(w, other.PutSession(w.Context(), later))
	_, err = s.Session(w.Context(), "d1", noon)
	require.ErrorIs(w, err, dlq.ErrNotFound, "removed because it has expired")
	require.NoError(w, s.EndSession(w.Context(), "d2"))
	require.NoError(w, s.EndSession(w.Context(), "d2"))
	_, err = other.Session(w.Context(), "d2", noon.Add(2*time.Hour))
	require.ErrorIs(w, err, dlq.ErrNotFound)
	require.ErrorIs(w, s.PutSession(w.Context(), driver.Session{Digest: "d3"}), dlq.ErrInvalid)
}

// Records that change no entry are stored all or none.
func testRecord(w *world) {
	s, ok := driver.As[driver.RecordStore](w.Store)
	require.True(w, ok)
	read := driver.AuditRecord{
		At: noon, Actor: "ana", Action: driver.ActionRead, EntryID: 7, Detail: map[string]string{"as": "é"},
	}
	require.ErrorIs(w, s.Record(w.Context(), read, driver.AuditRecord{Actor: "ana"}), dlq.ErrInvalid)
	require.NoError(w, s.Record(w.Context()))
	require.NoError(w, s.Record(w.Context(), read))
	records := w.recorded(dlq.AuditFilter{}, dlq.Page{})
	require.Len(w, records, 1)
	records[0].ID = 0
	require.Equal(w, read, records[0])
}
