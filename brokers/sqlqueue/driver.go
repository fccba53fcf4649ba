package sqlqueue

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/crash"
)

func init() {
	for _, scheme := range []string{"postgres", "postgresql", "mysql", "mariadb", "sqlite"} {
		brokers.Register(scheme, urlDriver{scheme: scheme})
	}
}

// urlDriver opens queues in the database that a URL names.
type urlDriver struct{ scheme string }

var _ brokers.Driver = urlDriver{}

// Params are the same for every database. The rest of the URL is the database driver's.
func (urlDriver) Params() []brokers.Param {
	return []brokers.Param{
		{Name: "driver", Doc: "Name of the database/sql driver; the usual ones of the scheme are tried when it is empty."},
		{Name: "migrate", Kind: brokers.Bool, Default: "true", Doc: "Make and upgrade the queue's tables at start."},
		{
			Name: "lease", Kind: brokers.Duration, Default: "30s", Min: int64(200 * time.Millisecond),
			Doc: "How long a message stays with a worker that shows no sign of life.",
		},
		{
			Name: "poll", Kind: brokers.Duration, Default: "75ms", Min: int64(shortestPause),
			Doc: "Longest pause between two looks for new messages where the database does not say that there are any.",
		},
		{Name: "listen", Kind: brokers.Bool, Default: "true", Doc: "Use PostgreSQL's LISTEN and NOTIFY where the driver can."},
		{
			Name: "prefetch", Kind: brokers.Int, Default: "1024", Max: 10_000,
			Doc: "Most messages that a subscription leases beyond those its handlers are working on.",
		},
		{
			Name: "nack-delay", Kind: brokers.Duration, Default: "100ms",
			Doc: "Pause before a nacked message comes back; it doubles with each delivery, up to 10 s.",
		},
		{
			Name: "crash-limit", Kind: brokers.Int, Default: strconv.Itoa(crash.DefaultLimit),
			Doc: "Leases in a row that may end without an answer before a message is dead-lettered; 0 means that there is no limit.",
		},
		{
			Name: "retention", Kind: brokers.Duration, Default: "0s",
			Doc: "How long acked messages are kept in redrive_queue_archive; 0 removes them at once.",
		},
		{
			Name: "max-connections", Kind: brokers.Int, Default: "8", Min: 1,
			Doc: "Most connections to the database.",
		},
		{Name: "*", Native: true, Doc: "Every other parameter belongs to the database driver."},
	}
}

// Open opens the database and makes the queue's tables.
func (d urlDriver) Open(ctx context.Context, cfg brokers.Config) (brokers.Broker, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, errors.New("sqlqueue: the URL cannot be parsed")
	}
	src, err := sourceOf(u)
	if err != nil {
		return nil, fmt.Errorf("sqlqueue: open %s: %w", redactURL(u), err)
	}
	db, err := src.open(cfg.Params.String("driver"), cfg.Params.Int("max-connections"))
	if err != nil {
		return nil, fmt.Errorf("sqlqueue: open %s: %w", redactURL(u), err)
	}
	b, err := open(ctx, db, src.dialect, d.scheme, cfg)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("sqlqueue: open %s: %w", redactURL(u), err), db.Close())
	}
	b.ownsDB = true
	return b, nil
}
