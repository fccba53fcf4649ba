package chaos_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/integration/services"
)

// fault breaks something, and repairs it before do returns. With outage, a standstill during it is not an error.
type fault struct {
	name   string
	outage bool
	do     func(ctx context.Context) error
}

// target is where the service runs.
type target struct {
	workers []string // URLs for the workers, used alternately, through proxies that fail
	direct  string   // URL for the publisher and the reader of dead letters
	faults  []fault
	// remove deletes the service's objects on its broker, with all their messages.
	remove func(ctx context.Context) error
	deep   func(id string) error // publishes a message that cannot be passed to a handler; nil if there is none
	// dead reads dead letters until ctx ends or an error occurs; nil if the service's own driver can read any queue.
	dead func(ctx context.Context, found func(id, headers string)) error
}

// worker returns the URL of the ith worker.
func (t target) worker(i int) string { return t.workers[i%len(t.workers)] }

// wait waits for the duration of a fault.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// cuts are faults of the network between the workers and their broker.
func cuts(p *services.Proxy) []fault {
	return []fault{
		{"connections cut", false, func(context.Context) error { return p.Flap() }},
		{"connections cut five times", true, func(ctx context.Context) error {
			for range 5 {
				if err := p.Flap(); err != nil {
					return err
				}
				wait(ctx, 300*time.Millisecond)
			}
			return nil
		}},
		{"network frozen", true, func(ctx context.Context) error {
			err := p.Freeze()
			if err == nil {
				wait(ctx, 2*time.Second)
				err = p.Flap()
			}
			return err
		}},
		{"responses lost", true, func(ctx context.Context) error {
			err := p.LoseAnswers()
			if err == nil {
				wait(ctx, time.Second)
				err = p.Flap()
			}
			return err
		}},
	}
}

// machine is a server from package services.
type machine interface {
	Kill() error
	Start(ctx context.Context) error
	Restart(ctx context.Context) error
	Pause() error
	Resume() error
}

// crashes are faults of the broker's machine.
func crashes(m machine) []fault {
	return []fault{
		{"broker restarted", true, m.Restart},
		{"broker killed", true, func(ctx context.Context) error {
			if err := m.Kill(); err != nil {
				return err
			}
			return m.Start(ctx)
		}},
		{"broker frozen", true, func(ctx context.Context) error {
			if err := m.Pause(); err != nil {
				return err
			}
			wait(ctx, 1500*time.Millisecond)
			return m.Resume()
		}},
	}
}

// settled is a RabbitMQ that has written its queues to disk before it is killed. It keeps new queues in memory for
// seconds, and one that is three seconds old would have no leader after the restart.
type settled struct{ *services.Rabbit }

func (s settled) Kill() error {
	return errors.Join(s.Settle(context.Background()), s.Rabbit.Kill())
}

func rabbitMQ(cfg services.RabbitConfig) func(t *testing.T) target {
	return func(t *testing.T) target {
		t.Helper()
		// A retry that becomes due before the consumer's queue has recovered is sent again after this time, and after three
		// minutes by default, which is more than the patience of a test.
		cfg.DeadLetterConfirmTimeout = 2 * time.Second
		r := services.RabbitMQ(t, cfg)
		p := services.NewProxy(t, r.URL)
		alarm := fault{"memory alarm", true, func(ctx context.Context) error {
			if _, err := r.Ctl(ctx, "set_vm_memory_high_watermark", "absolute", "1MB"); err != nil {
				return err
			}
			wait(ctx, 2*time.Second)
			_, err := r.Ctl(ctx, "set_vm_memory_high_watermark", "absolute", "1GB")
			return err
		}}
		return target{
			workers: []string{p.URL(t, r.URL)}, direct: r.URL,
			faults: append(append(cuts(p), crashes(settled{r})...), alarm),
			remove: func(context.Context) error { return deleteQueues(r.URL) },
			deep:   func(id string) error { return publishDeep(r.URL, id) },
			dead:   func(ctx context.Context, found func(id, headers string)) error { return readQueue(ctx, r.URL, found) },
		}
	}
}

// readQueue reads the dead letter queue with a plain client.
func readQueue(ctx context.Context, url string, found func(id, headers string)) error {
	connection, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	deliveries, err := channel.ConsumeWithContext(ctx, deadTopic, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for d := range deliveries {
		found(d.MessageId, fmt.Sprint(d.Headers))
		if err := d.Ack(false); err != nil {
			return err
		}
	}
	return nil
}

// deleteQueues deletes the queues of the service.
func deleteQueues(url string) error {
	connection, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	for _, queue := range []string{topic, deadTopic, topic + "_retry." + strconv.FormatInt(backoff.Milliseconds(), 10)} {
		if _, err := channel.QueueDelete(queue, false, false, false); err != nil {
			return err
		}
	}
	return nil
}

// rabbitCluster is a cluster of three nodes, of which one at a time fails. Each worker is connected to a different
// node.
func rabbitCluster(t *testing.T) target {
	t.Helper()
	c := services.RabbitMQOf(t, services.RabbitConfig{}, 3)
	to := target{
		direct: c.Nodes[2].URL,
		dead: func(ctx context.Context, found func(id, headers string)) error {
			return readQueue(ctx, c.Nodes[2].URL, found)
		},
		remove: func(context.Context) error { return deleteQueues(c.Nodes[2].URL) },
	}
	for _, r := range c.Nodes {
		p := services.NewProxy(t, r.URL)
		to.workers = append(to.workers, p.URL(t, r.URL))
		to.faults = append(append(to.faults, cuts(p)...), crashes(settled{r})...)
	}
	return to
}

// publishDeep publishes a message whose headers no Go client for AMQP can decode.
func publishDeep(url, id string) error {
	connection, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err == nil {
		err = channel.Confirm(false)
	}
	if err != nil {
		return err
	}
	headers := amqp.Table{}
	for range 40 {
		headers = amqp.Table{"n": headers}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, "", topic, true, false,
		amqp.Publishing{MessageId: "chaos-" + id, Headers: headers, Body: []byte("{}"), DeliveryMode: amqp.Persistent})
	if err != nil {
		return err
	}
	_, err = confirm.WaitContext(ctx)
	return err
}

func kafka(t *testing.T) target {
	t.Helper()
	k := services.Kafka(t, services.KafkaConfig{Settings: map[string]string{"num.partitions": "4"}, Proxied: true})
	return target{
		workers: []string{"kafka://" + strings.Join(k.ProxiedBrokers, ",")}, direct: k.URL(),
		faults: append(cuts(k.Proxy), crashes(k)...),
		remove: func(ctx context.Context) error { return deleteTopics(ctx, k.Brokers) },
	}
}

// deleteTopics deletes the topics of the service.
func deleteTopics(ctx context.Context, seeds []string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(seeds...))
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	topics, err := admin.ListTopics(ctx)
	if err != nil {
		return err
	}
	var ours []string
	for _, name := range topics.Names() {
		if strings.HasPrefix(name, topic) {
			ours = append(ours, name)
		}
	}
	deleted, err := admin.DeleteTopics(ctx, ours...)
	return errors.Join(err, deleted.Error())
}

// kafkaCluster is a cluster of three nodes, of which one at a time fails.
func kafkaCluster(t *testing.T) target {
	t.Helper()
	c := services.KafkaOf(t, 3)
	to := target{
		workers: []string{c.URL()}, direct: c.URL(),
		remove: func(ctx context.Context) error { return deleteTopics(ctx, c.Brokers) },
	}
	for _, k := range c.Nodes {
		to.faults = append(to.faults, crashes(k)...)
	}
	return to
}

func postgres(t *testing.T) target {
	t.Helper()
	server := services.Postgres(t, services.PostgresConfig{Durable: true})
	url := server.Database(t)
	p := services.NewProxy(t, url)
	return target{
		workers: []string{p.URL(t, url)}, direct: url, remove: deleteRows(open(t, "pgx", url)),
		faults: append(cuts(p), crashes(server)...),
	}
}

func mariaDB(t *testing.T) target {
	t.Helper()
	server := services.MariaDB(t, services.MySQLConfig{Durable: true})
	url := server.Database(t)
	dsn, err := services.MySQLDSN(url)
	require.NoError(t, err)
	p := services.NewProxy(t, url)
	return target{
		workers: []string{p.URL(t, url)}, direct: url, remove: deleteRows(open(t, "mysql", dsn)),
		faults: append(cuts(p), crashes(server)...),
	}
}

func open(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// deleteRows repeatedly deletes the messages of every queue: some rows are locked, and the server may abort our
// statement because of a deadlock.
func deleteRows(db *sql.DB) func(ctx context.Context) error {
	return func(ctx context.Context) (err error) {
		for range 20 {
			if _, err = db.ExecContext(ctx, "DELETE FROM redrive_queue_messages"); err == nil {
				return nil
			}
			wait(ctx, 50*time.Millisecond)
		}
		return err
	}
}

// sqlite has no server and no network: the only fault is that another process holds its lock.
func sqlite(t *testing.T) target {
	t.Helper()
	path := t.TempDir() + "/chaos.db"
	db := open(t, "sqlite", "file:"+path+"?_pragma=busy_timeout(120000)") // as long as any operation may take
	return target{workers: []string{"sqlite:" + path}, direct: "sqlite:" + path, remove: deleteRows(db), faults: []fault{
		{"database locked", true, func(ctx context.Context) error {
			c, err := db.Conn(ctx)
			if err != nil {
				return err
			}
			defer c.Close()
			if _, err := c.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
				return err
			}
			wait(ctx, 2*time.Second)
			_, err = c.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
			return err
		}},
	}}
}
