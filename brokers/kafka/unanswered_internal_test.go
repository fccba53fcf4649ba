package kafka

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// A publication that runs out of time leaves its record with the client, which has yet to write the partition into it.
// So the driver must not read the record any more: with -race this test fails if it does. The client continues when a
// directory exists, because a channel or a mutex would order the two accesses, and hide the race.
func TestStore_UnansweredRecordsBelongToTheClient(t *testing.T) {
	t.Parallel()
	publish := func(ctx context.Context, b *Broker, id string) error {
		m := message.NewMessage(id, nil)
		m.SetContext(ctx)
		return b.Publisher().Publish("orders", m)
	}
	retry := func(ctx context.Context, b *Broker, id string) error {
		origin := envelope.Origin{Topic: "orders", Consumer: "billing", Partition: new(int32)}
		return b.Reschedule(ctx, origin, message.NewMessage(id, nil), 0)
	}
	for name, send := range map[string]func(ctx context.Context, b *Broker, id string) error{
		"publish": publish, "retry": retry,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := openInternal(t)
			require.NoError(t, b.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("orders"))
			returned := filepath.Join(t.TempDir(), "returned")
			slow := newSlowProducer(t, b, func() {
				for _, err := os.Stat(returned); err != nil; _, err = os.Stat(returned) {
					runtime.Gosched()
				}
			})
			b.t.out, b.t.waits = slow, slow

			first := make(chan error)
			go func() { first <- send(context.Background(), b, "first") }()
			slow.awaitRecords(1)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				slow.awaitRecords(2)
				cancel()
			}()
			require.ErrorIs(t, send(ctx, b, "second"), context.Canceled)
			require.NoError(t, os.Mkdir(returned, 0o700))
			require.NoError(t, <-first)
			slow.awaitRecords(0)
		})
	}
}

// While the client looks for a topic, the end of one caller's context fails the records of no other.
func TestProducer_AnotherCallerGivesUp(t *testing.T) {
	t.Parallel()
	p, find := newSearchingProducer(t)
	two := func() []*kgo.Record { return []*kgo.Record{{Topic: "orders"}, {Topic: "orders"}} } // one would be gathered

	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan []error), make(chan []error)
	go func() { first <- p.send(ctx, two()) }()
	p.awaitBuffered(2)
	go func() { second <- p.send(context.Background(), two()) }()
	p.awaitBuffered(4)
	cancel()
	require.ErrorIs(t, errors.Join(<-first...), context.Canceled)
	find()
	require.Empty(t, <-second)
}

// A caller that waits for room in the client gives up when its context ends, and disturbs no other.
func TestProducer_WaitForRoom(t *testing.T) {
	t.Parallel()
	p, find := newSearchingProducer(t)
	value := make([]byte, 1<<20-1024)
	records := func(n int) []*kgo.Record {
		all := make([]*kgo.Record, n)
		for i := range all {
			all[i] = &kgo.Record{Topic: "orders", Value: value}
		}
		return all
	}
	first := make(chan []error)
	go func() { first <- p.send(context.Background(), records(maxBufferedBytes>>20)) }()
	p.awaitBuffered(maxBufferedBytes >> 20)
	ctx, cancel := context.WithCancel(t.Context())
	second := make(chan []error)
	go func() { second <- p.send(ctx, records(2)) }()
	cancel()
	require.ErrorIs(t, errors.Join(<-second...), context.Canceled)
	find()
	require.Empty(t, <-first)
}

// newSearchingProducer returns a producer whose client looks for the topic orders until find is called.
func newSearchingProducer(t *testing.T) (p *producer, find func()) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	p = newSlowProducer(t, openOn(t, cluster), func() {})
	t.Cleanup(p.close)
	found := make(chan struct{})
	cluster.ControlKey(kmsg.Metadata.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
		<-found
		return nil, nil, false
	})
	return p, func() { close(found) }
}

// awaitBuffered returns when the client has n records.
func (p *producer) awaitBuffered(n int64) {
	for p.client.BufferedProduceRecords() < n {
		runtime.Gosched()
	}
}

func openInternal(t *testing.T) *Broker {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.DefaultNumPartitions(1))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	return openOn(t, cluster)
}

func openOn(t *testing.T, cluster *kfake.Cluster) *Broker {
	t.Helper()
	b, err := brokers.Open(t.Context(), "kafka://"+strings.Join(cluster.ListenAddrs(), ",")+
		"?group=billing&publish-timeout=1m")
	require.NoError(t, err)
	out, waits := b.(*Broker).t.out, b.(*Broker).t.waits
	t.Cleanup(func() {
		require.NoError(t, b.Close())
		out.close()
		waits.close()
	})
	return b.(*Broker)
}

// newSlowProducer returns a producer that calls wait before it chooses a partition.
func newSlowProducer(t *testing.T, b *Broker, wait func()) *producer {
	t.Helper()
	common, err := clientOptions(b.t.cfg, b.t.seeds, b.t.user)
	require.NoError(t, err)
	p, err := newProducer(b.t.cfg, common, kgo.BasicConsistentPartitioner(func(string) func(*kgo.Record, int) int {
		return func(*kgo.Record, int) int {
			wait()
			return 0
		}
	}), 1<<20)
	require.NoError(t, err)
	return p
}

// awaitRecords returns when n single records are waiting or unanswered.
func (p *producer) awaitRecords(n int) {
	for have := -1; have != n; runtime.Gosched() {
		have = 0
		p.gather.mu.Lock()
		for _, g := range p.gather.topics {
			have += g.unanswered + len(g.waiting)
		}
		p.gather.mu.Unlock()
	}
}
