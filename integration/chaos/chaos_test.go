package chaos_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

var (
	rounds   = flag.Int("chaos.rounds", 1, "how often each fault happens on each broker")
	seed     = flag.Uint64("chaos.seed", 0, "seed of the faults and messages; 0 picks one and prints it")
	rate     = flag.Int("chaos.rate", 50, "messages published per second")
	deletes  = flag.Bool("chaos.delete", false, "also delete the service's queues, topics and rows while it runs")
	clusters = flag.Bool("chaos.clusters", false,
		"also run RabbitMQ and Kafka clusters of three nodes, which need two gigabytes")
)

// Whatever is killed, cut, frozen or restarted, no message is dead-lettered unless a handler refused it, none is lost,
// none is delivered before it is due, and none is stuck after recovery.
func TestChaos(t *testing.T) {
	t.Parallel()
	cases := map[string]func(*testing.T) target{
		"RabbitMQ":   rabbitMQ(services.RabbitConfig{}),
		"RabbitMQ4":  rabbitMQ(services.RabbitConfig{Four: true}),
		"Kafka":      kafka,
		"PostgreSQL": postgres,
		"MariaDB":    mariaDB,
		"SQLite":     sqlite,
	}
	if *clusters {
		cases["RabbitMQOfThree"] = rabbitCluster
		cases["KafkaOfThree"] = kafkaCluster
	}
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	for name, start := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Logf("-chaos.seed %d", *seed)
			run(t, start(t))
		})
	}
}

// chaos is one run of the test.
type chaos struct {
	t      *testing.T
	target target
	ledger *ledger
	book   string

	workers []*process
}

func run(t *testing.T, to target) {
	t.Helper()
	c := &chaos{t: t, target: to, ledger: newLedger(), book: filepath.Join(t.TempDir(), "book")}
	defer func() {
		if t.Failed() {
			t.Log(c.ledger.verdict(), c.ledger.verdict().lost)
		}
	}()
	for i := range 2 {
		c.workers = append(c.workers, startWorker(t, to.worker(i), c.book))
	}
	broker, err := brokers.OpenConfig(t.Context(), config(to.direct))
	require.NoError(t, err)
	defer func() { require.NoError(t, broker.Close()) }()

	first := plan{ID: "first", Kind: passes}
	c.ledger.publishing(first)
	await.True(t, func() bool { return broker.Publisher().Publish(topic, first.message()) == nil },
		"the first message was not published")
	c.ledger.confirmed(first.ID)
	await.True(t, func() bool { return c.ledger.update(c.book) == nil && c.ledger.open() == 0 },
		"the first message was not handled")

	reading, stopReading := context.WithCancel(t.Context())
	going, over := context.WithCancel(t.Context())
	defer over()
	var helpers, reader sync.WaitGroup
	reader.Go(func() { c.readDead(reading, broker) })
	helpers.Go(func() { c.publish(going, broker) })
	c.spoil()
	over()
	helpers.Wait()

	c.await()
	for _, w := range c.workers {
		w.stop()
	}
	require.NoError(t, c.ledger.update(c.book))
	stopReading()
	reader.Wait()

	v := c.ledger.verdict()
	t.Log(v)
	require.Empty(t, v.lost, "lost")
	require.Empty(t, v.wronglyDead, "dead-lettered, but not refused by a handler")
	require.Empty(t, v.wronglyHandled, "handled and dead-lettered")
	require.Empty(t, v.early, "handled before they were due")
	require.Empty(t, c.ledger.strange, "never published")
}

// publish publishes until ctx ends. A message may have been stored even if publishing it failed.
func (c *chaos) publish(ctx context.Context, broker brokers.Broker) {
	random := rand.New(rand.NewPCG(*seed, 1))
	publisher := broker.Publisher()
	tick := time.NewTicker(time.Second / time.Duration(*rate))
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		p := draw(random, n)
		c.ledger.publishing(p)
		if publisher.Publish(topic, p.message()) == nil {
			c.ledger.confirmed(p.ID)
		}
		if c.target.deep != nil && n%200 == 100 {
			deep := plan{ID: "deep-" + strconv.Itoa(n), Kind: refused}
			c.ledger.publishing(deep)
			if c.target.deep(deep.ID) == nil {
				c.ledger.confirmed(deep.ID)
			}
		}
	}
}

// readDead records the dead letters in the ledger until ctx ends. One that is read twice counts once.
func (c *chaos) readDead(ctx context.Context, broker brokers.Broker) {
	seen := map[string]bool{}
	found := func(id, headers string) {
		if id = strings.TrimPrefix(id, "chaos-"); !seen[id] {
			seen[id] = true
			c.ledger.dead(id, headers)
		}
	}
	read := c.target.dead
	if read == nil {
		read = func(ctx context.Context, found func(id, headers string)) error { return readTopic(ctx, broker, found) }
	}
	for ctx.Err() == nil {
		_ = read(ctx, found) // the broker is down, or the queue does not exist yet
		wait(ctx, 100*time.Millisecond)
	}
}

func readTopic(ctx context.Context, broker brokers.Broker, found func(id, headers string)) error {
	messages, err := broker.Subscriber(brokers.WithGroup("undertaker")).Subscribe(ctx, deadTopic)
	if err != nil {
		return err
	}
	for m := range messages {
		found(m.UUID, fmt.Sprint(m.Metadata))
		m.Ack()
	}
	return nil
}

// spoil causes one fault after the other, each during traffic, and repairs it.
func (c *chaos) spoil() {
	random := rand.New(rand.NewPCG(*seed, 2))
	faults := append(c.workerFaults(random), c.target.faults...)
	if *deletes {
		require.NotNil(c.t, c.target.remove)
		faults = append(faults, fault{"everything deleted", false, func(ctx context.Context) error {
			defer c.ledger.deleted()
			return c.target.remove(ctx)
		}})
	}
	for range *rounds {
		for _, i := range random.Perm(len(faults)) {
			c.traffic(20 + random.IntN(60))
			c.suffer(faults[i])
		}
	}
	c.traffic(20)
}

func (c *chaos) suffer(f fault) {
	over := func() {}
	if f.outage {
		over = c.ledger.unavailable()
	}
	began := time.Now()
	require.NoError(c.t, f.do(c.t.Context()), f.name)
	over()
	c.t.Logf("%s, %s", f.name, time.Since(began).Round(time.Millisecond))
}

// traffic waits for n more confirmed messages and n more handler calls.
func (c *chaos) traffic(n int) {
	confirmed, runs := c.ledger.progress()
	await.Progress(c.t, func() (int, bool) {
		require.NoError(c.t, c.ledger.update(c.book))
		nowConfirmed, nowRuns := c.ledger.progress()
		return nowConfirmed + nowRuns, nowConfirmed >= confirmed+n && nowRuns >= runs+n
	}, "a disturbed service makes no progress")
}

func (c *chaos) workerFaults(random *rand.Rand) []fault {
	one := func() *process { return c.workers[random.IntN(len(c.workers))] }
	again := func(p *process) {
		for i, w := range c.workers {
			if w == p {
				c.workers[i] = startWorker(c.t, c.target.worker(i), c.book)
			}
		}
	}
	return []fault{
		{"worker killed", false, func(context.Context) error { p := one(); p.kill(); again(p); return nil }},
		{"worker deployed", false, func(context.Context) error { p := one(); p.stop(); again(p); return nil }},
		{"both workers killed", true, func(context.Context) error {
			for _, p := range c.workers {
				p.kill()
			}
			for _, p := range append([]*process(nil), c.workers...) {
				again(p)
			}
			return nil
		}},
		{"worker frozen", false, func(ctx context.Context) error {
			p := one()
			p.pause()
			wait(ctx, 1500*time.Millisecond)
			p.resume()
			return nil
		}},
		{"a third worker that flaps", false, func(ctx context.Context) error {
			for range 3 {
				p := startWorker(c.t, c.target.worker(2), c.book)
				wait(ctx, 400*time.Millisecond)
				p.kill()
			}
			return nil
		}},
	}
}

// await waits, as long as there is progress, until every confirmed message is settled, and then until the workers have
// recorded nothing for a while, because a copy may still be redelivered or dead-lettered.
func (c *chaos) await() {
	settled := func() (int64, bool) {
		require.NoError(c.t, c.ledger.update(c.book))
		open := c.ledger.open()
		return c.ledger.bytes() - int64(open)<<32, open == 0
	}
	await.Progress(c.t, settled, "messages are lost")
	const quiet = 3 * time.Second
	for before := int64(-1); c.ledger.bytes() != before; {
		before = c.ledger.bytes()
		wait(c.t.Context(), quiet)
		require.NoError(c.t, c.ledger.update(c.book))
	}
}
