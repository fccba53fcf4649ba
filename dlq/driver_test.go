package dlq_test

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

type openFunc func(u *url.URL) (dlq.Store, error)

func (f openFunc) OpenStore(_ context.Context, u *url.URL) (dlq.Store, error) { return f(u) }

func TestOpen(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"sqlite:%s", "sqlite://%s", "sqlite3:%s", "%s"} {
		dir := t.TempDir()
		file := filepath.Join(dir, "dead letters.db")
		l, err := dlq.Open(t.Context(), fmt.Sprintf(format, file))
		require.NoError(t, err, format)
		require.NoError(t, l.DeadLetter(t.Context(), death(1)))
		require.NoError(t, l.Close())
		require.FileExists(t, file)
		require.DirExists(t, file+"-spool", "next to the file by default")
	}
	require.Subset(t, driver.Schemes(), []string{"sqlite", "sqlite3"})
}

func TestOpen_Refuses(t *testing.T) {
	t.Parallel()
	var empty, one driver.Mux
	one.Register("Foo", openFunc(func(*url.URL) (dlq.Store, error) { return newStore(t), nil }))
	for name, c := range map[string]struct {
		mux  *driver.Mux
		url  string
		want []string
	}{
		"unknown scheme": {
			&one, "redis://host",
			[]string{`unknown scheme "redis"`, "registered: foo", "forgotten import?"},
		},
		"import is missing": {
			&one, "postgres://u:secret@h/db",
			[]string{`_ "github.com/redrive-go/redrive/dlq/sqlstore"`, "registered: foo"},
		},
		"nothing registered": {&empty, "", []string{`unknown scheme "sqlite"`, "none is registered"}},
		"password with %":    {&one, "foo://u:se%cret@h/db", []string{"percent-encoded"}},
		"password with /":    {&one, "foo://u:pa/secret@h/db", []string{"percent-encoded"}},
		"a DSN of PostgreSQL": {
			&one, "host=db.internal user=app password=secret dbname=app",
			[]string{"write postgres://user@host/database"},
		},
		"a DSN with an IPv6": {&one, "dbname=app host=::1 password=secret", []string{"connection string"}},
		"a DSN of MySQL":     {&one, "root:secret@tcp(db:3306)/app", []string{"mysql://user@host/database"}},
		"control character":  {&one, "foo://u:secret@h/\x7f", []string{"not a URL"}},
	} {
		_, err := dlq.Open(t.Context(), c.url, dlq.WithMux(c.mux), dlq.WithSpool(t.TempDir()))
		require.Error(t, err, name)
		for _, want := range c.want {
			require.ErrorContains(t, err, want, name)
		}
		require.NotContains(t, err.Error(), "cret", name)
	}
	l, err := dlq.Open(t.Context(), "FOO://host", dlq.WithMux(&one), dlq.WithSpool(t.TempDir()))
	require.NoError(t, err, "schemes have no letter case")
	require.NoError(t, l.Close())
}

func TestMux_RegisterPanicsForProgrammers(t *testing.T) {
	t.Parallel()
	var mux driver.Mux
	driver := openFunc(func(*url.URL) (dlq.Store, error) { return newStore(t), nil })
	mux.Register("foo", driver)
	require.Panics(t, func() { mux.Register("FOO", driver) })
	require.Panics(t, func() { mux.Register("", driver) })
	require.Panics(t, func() { mux.Register("bar", nil) })
	require.Equal(t, []string{"foo"}, mux.Schemes())
}
