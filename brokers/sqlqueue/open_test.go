package sqlqueue_test

import (
	"errors"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqlqueue"
)

// Every fault of a URL is an error that names a remedy and does not show the password.
func TestOpen_FaultsAreClear(t *testing.T) {
	for name, c := range map[string]struct{ url, want string }{
		"MissingDriver":    {"postgres://app:s3cret@localhost/app", `add _ "github.com/jackc/pgx/v5/stdlib"`},
		"MissingMySQL":     {"mysql://app:s3cret@localhost/app", `add _ "github.com/go-sql-driver/mysql"`},
		"NamedDriver":      {"postgres://app:s3cret@localhost/app?x-driver=cloudsql", "cloudsql"},
		"NoDatabase":       {"mysql://app:s3cret@localhost", "names no database"},
		"NoFile":           {"sqlite://", "names no file"},
		"Memory":           {"sqlite://:memory:", "mem://"},
		"UnknownParameter": {"sqlite://q.db?x-leese=1s", "lease"},
		"LeaseTooShort":    {"sqlite://q.db?x-lease=1ms", "lease"},
		"NotADuration":     {"sqlite://q.db?x-poll=fast", "poll"},
		"NoDirectory":      {"sqlite:///does/not/exist/q.db", "sqlqueue"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := brokers.Open(t.Context(), c.url)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "s3cret")
		})
	}
}

func TestNew_UnknownDialect(t *testing.T) {
	_, err := sqlqueue.New(t.Context(), nil, "oracle")
	require.ErrorContains(t, err, "known are postgres, mysql, sqlite")
}

// If the tables are missing and may not be created, Open returns an error.
func TestOpen_WithoutMigration(t *testing.T) {
	_, err := brokers.Open(t.Context(), fileURL(t, "x-migrate=false"))
	require.ErrorContains(t, err, "apply the migrations")
}

// Ten processes that start at once create one schema.
func TestMigrate_TenAtOnce(t *testing.T) {
	u := fileURL(t, "")
	faults := make([]error, 10)
	var processes sync.WaitGroup
	for i := range faults {
		processes.Go(func() {
			b, err := brokers.Open(t.Context(), u)
			if err == nil {
				err = b.Close()
			}
			faults[i] = err
		})
	}
	processes.Wait()
	require.NoError(t, errors.Join(faults...))
}

// A file name may contain any characters.
func TestOpen_FileNames(t *testing.T) {
	for _, name := range []string{"with space.db", "per%cent.db", "question?.db", "hash#.db", "ünï.db"} {
		path := filepath.Join(t.TempDir(), name)
		b := openURL(t, (&url.URL{Scheme: "sqlite", Path: path}).String())
		require.NoError(t, b.Ping(t.Context()))
		require.FileExists(t, path)
	}
}

func TestPublish_RefusesInvalidTopics(t *testing.T) {
	b := openURL(t, fileURL(t, ""))
	for name, topic := range map[string]string{
		"Empty":   "",
		"TooLong": strings.Repeat("x", 256),
		"Control": "a\nb",
		"NotUTF8": "a\xff",
	} {
		t.Run(name, func(t *testing.T) {
			require.Error(t, b.Publisher().Publish(topic, message.NewMessage("1", nil)))
			_, err := b.Subscriber().Subscribe(t.Context(), topic)
			require.Error(t, err)
		})
	}
}

// A topic whose dead letters would have no place is refused before its first message.
func TestSubscribe_RefusesTopicsWithoutRoomForDeadLetters(t *testing.T) {
	b := openURL(t, fileURL(t, ""))
	_, err := b.Subscriber().Subscribe(t.Context(), strings.Repeat("x", 255))
	require.ErrorContains(t, err, "the dead letter topic of")
}

func TestSubscriber_PatternsAreUnsupported(t *testing.T) {
	b := openURL(t, fileURL(t, ""))
	_, err := b.Subscriber(brokers.WithPatterns("invoice.*")).Subscribe(t.Context(), "orders")
	require.ErrorIs(t, err, brokers.ErrUnsupported)
	for _, pattern := range []string{"invoice.*", "#", "*.created"} {
		_, err := b.Subscriber().Subscribe(t.Context(), pattern)
		require.ErrorIs(t, err, brokers.ErrUnsupported, "it would receive nothing: %s", pattern)
	}
}
