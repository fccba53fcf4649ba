package callers

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
)

// One viewer does not shut others out of the progress streams, and all viewers together do not shut out an admin.
func TestSlots(t *testing.T) {
	t.Parallel()
	s := NewSlots("progress streams", 100, 10, 10, 0)
	viewer, admin := access.Principal{Name: "vic", Role: access.Viewer}, access.Principal{Name: "root", Role: access.Admin}
	take := func(s *Slots, who access.Principal) (free func()) {
		free, err := s.Take(t.Context(), who)
		require.NoError(t, err)
		return free
	}
	refused := func(s *Slots, who access.Principal, why string) {
		_, err := s.Take(t.Context(), who)
		require.ErrorIs(t, err, ErrFull)
		require.ErrorContains(t, err, why)
	}
	var free func()
	for range 10 {
		free = take(s, viewer)
	}
	refused(s, viewer, "one caller")
	for i := range 80 {
		take(s, access.Principal{Name: strconv.Itoa(i), Role: access.Operator})
	}
	refused(s, access.Principal{Name: "late", Role: access.Approver}, "90 progress streams are running")
	take(s, admin)()
	free()
	take(s, viewer)
	one := NewSlots("progress streams", 1, 1, 0, 0)
	take(one, viewer)
	refused(one, admin, "this server")
}

// The kept answers of a caller are bounded. One that is too large is not kept, but its request is not repeated either;
// previews are: they change nothing.
func TestAnswers_Size(t *testing.T) {
	t.Parallel()
	who := access.Principal{Name: "ana", Role: access.Operator}
	c, size, handled := NewAnswers(), maxAnswer, 0
	repeatable := func(r *http.Request) bool { return r.URL.Path != "/edit/preview" }
	handler := c.Idempotent(1<<20, repeatable, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		handled++
		for range 2 {
			_, _ = w.Write(make([]byte, size/2))
		}
	}))
	post := func(path, key string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(access.WithPrincipal(t.Context(), who), http.MethodPost, path, nil)
		r.Header.Set(KeyHeader, key)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w
	}
	for i := range 3 * maxAnswers / maxAnswer {
		require.Equal(t, maxAnswer, post("/edit", strconv.Itoa(i)).Body.Len())
		again := post("/edit", strconv.Itoa(i))
		require.Equal(t, "true", again.Header().Get("Idempotent-Replayed"))
		require.Equal(t, maxAnswer, again.Body.Len())
		require.LessOrEqual(t, c.keys(&who).size(), maxAnswers)
	}
	size, handled = maxAnswer+2, 0
	require.Equal(t, http.StatusOK, post("/edit", "large").Code)
	again := post("/edit", "large")
	require.Equal(t, http.StatusConflict, again.Code)
	require.Contains(t, again.Body.String(), "too large")
	require.Equal(t, 1, handled)
	for range 2 {
		require.Equal(t, http.StatusOK, post("/edit/preview", "preview").Code)
	}
	require.Equal(t, 3, handled)
	require.LessOrEqual(t, c.keys(&who).size(), maxAnswers)
}

// The kept answers of one caller evict none of another's; a caller whose role has changed is a different one, and so is
// one with the same name but without credentials.
func TestCallers(t *testing.T) {
	t.Parallel()
	c := NewAnswers()
	key := func(who *access.Principal) [32]byte { return digest(who.Identity(), "key") }
	kept := func(who *access.Principal) bool {
		found := c.keys(who).answers[key(who)]
		return found != nil && found.done
	}
	ana := access.Principal{Name: "ana", Role: access.Operator}
	a, begun := c.keys(&ana).begin(key(&ana), [32]byte{1})
	require.True(t, begun)
	c.keys(&ana).finish(key(&ana), a, &recorder{status: http.StatusOK, complete: true})
	require.True(t, kept(&ana))
	bo := access.Principal{Name: "bo", Role: access.Operator}
	first, _ := c.keys(&bo).begin(key(&bo), [32]byte{1})
	for i := range 3 * maxKeys {
		a, begun := c.keys(&bo).begin(digest(strconv.Itoa(i)), [32]byte{1})
		require.True(t, begun)
		c.keys(&bo).finish(digest(strconv.Itoa(i)), a, &recorder{status: http.StatusOK, complete: true})
	}
	require.Same(t, first, c.keys(&bo).answers[key(&bo)], "it is in flight: a repetition would be handled, too")
	require.Len(t, c.keys(&bo).answers, maxKeys)
	require.True(t, kept(&ana))
	require.False(t, kept(&access.Principal{Name: "ana", Role: access.Viewer}))
	require.False(t, kept(&access.Principal{Name: "ana", Role: access.Operator, Unproven: true}))
	for i := range 2 * maxCallers {
		c.keys(&access.Principal{Name: strconv.Itoa(i), Role: access.Admin, Unproven: true})
	}
	require.True(t, kept(&ana), "names that are free to choose are one caller")
	for i := range 2 * maxCallers {
		c.keys(&access.Principal{Name: strconv.Itoa(i), Role: access.Viewer})
	}
	require.Len(t, c.byCaller, maxCallers)
	a, begun = c.keys(&ana).begin(key(&ana), [32]byte{1})
	require.True(t, begun)
	for i := range 2 * maxCallers {
		c.keys(&access.Principal{Name: strconv.Itoa(i), Role: access.Admin})
	}
	require.Same(t, a, c.keys(&ana).answers[key(&ana)], "it is in flight, however many callers there are")
	require.Len(t, c.byCaller, maxCallers)
	c.keys(&ana).finish(key(&ana), a, &recorder{status: http.StatusOK, complete: true})
	for i := range 2 * maxCallers {
		c.keys(&access.Principal{Name: strconv.Itoa(i), Role: access.Viewer})
	}
	require.False(t, kept(&ana))
}
