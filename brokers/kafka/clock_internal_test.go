package kafka

import (
	"context"
	"errors"
	"hash/crc32"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
)

func TestClocks_AreNeverAheadOfTheBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c clocks
		_, known := c.now(1)
		require.False(t, known)

		const skew = -time.Minute // the broker's clock
		answer := func(latency time.Duration) {
			stamp := time.Now().Add(skew)
			time.Sleep(latency)
			c.observe(1, stamp)
		}
		behind := func() time.Duration {
			shown, known := c.now(1)
			require.True(t, known)
			return time.Now().Add(skew).Sub(shown)
		}
		answer(50 * time.Millisecond)
		require.Equal(t, 50*time.Millisecond, behind())
		answer(3 * time.Millisecond)
		require.Equal(t, 3*time.Millisecond, behind(), "a faster response is more precise")
		answer(2 * time.Second)
		require.Equal(t, 3*time.Millisecond, behind())

		time.Sleep(staleAfter)
		synctest.Wait()
		_, known = c.now(1)
		require.False(t, known, "clocks drift apart")
		answer(time.Second)
		require.Equal(t, time.Second, behind())
	})
}

// The timestamp of a record corrects an estimate that is behind. It cannot be the first estimate: a record that is a
// year old would set the clock back by a year, and every delivery would be a year late.
func TestClocks_IgnoreOldRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c clocks
		c.correct(1, time.Now().Add(-365*24*time.Hour))
		_, known := c.now(1)
		require.False(t, known)

		stamp := time.Now()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		c.observe(1, stamp)
		c.correct(1, time.Now().Add(-time.Hour))
		shown, _ := c.now(1)
		require.Equal(t, 3*time.Second, time.Since(shown))
		c.correct(1, time.Now())
		shown, _ = c.now(1)
		require.Zero(t, time.Since(shown))
	})
}

// A partition that is given up does not wait for another partition's probe, because the rebalance would have to wait,
// too.
func TestProbe_WaitsForAnotherOnlyAsLongAsItsOwnPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &transport{}
		held, cancel := context.WithCancel(t.Context())
		defer cancel()
		taken := make(chan struct{}, 1)
		taken <- struct{}{}
		b.probing.Store(int32(1), taken)
		ended := errors.New("given up")
		ctx, giveUp := context.WithTimeoutCause(held, time.Second, ended)
		defer giveUp()
		require.ErrorIs(t, b.probe(ctx, 1, topicPartition{}), ended)
	})
}

// Between the look at who leads a partition and the probe it may get another leader. Its time used to count as that of
// the broker that was asked for: if it was ahead, the waits on that broker ended early by as much.
func TestProbe_OfAnotherLeaderIsNotTheBrokersTime(t *testing.T) {
	t.Parallel()
	c, err := kfake.NewCluster(kfake.NumBrokers(2), kfake.SeedTopics(1, "orders_retry.100"))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	opened, err := brokers.Open(t.Context(), "kafka://"+strings.Join(c.ListenAddrs(), ","))
	require.NoError(t, err)
	b, at := opened.(*Broker).t, topicPartition{topic: "orders_retry.100"}
	t.Cleanup(func() { require.NoError(t, opened.Close()) })
	for _, leader := range []int32{1, 0} {
		require.NoError(t, c.MoveTopicPartition(at.topic, at.partition, leader))
		require.ErrorIs(t, b.probe(t.Context(), 1-leader, at), kerr.NotLeaderForPartition)
		_, known := b.clocks.now(1 - leader)
		require.False(t, known)
	}
	require.NoError(t, b.probe(t.Context(), 0, at))
	_, known := b.clocks.now(0)
	require.True(t, known)
}

// A record that the previous leader of a partition has timestamped used to correct the clock of the next one: if the
// clock of the first was ahead, the waits on the second ended early by as much.
func TestClocks_RecordsOfThePreviousLeader(t *testing.T) {
	t.Parallel()
	shown := time.Now()
	ahead := shown.Add(time.Hour)
	record := kmsg.Record{Length: 6}
	batch := kmsg.RecordBatch{
		PartitionLeaderEpoch: 1, Magic: 2, Attributes: 8, ProducerID: -1, NumRecords: 1, Records: record.AppendTo(nil),
		FirstTimestamp: ahead.UnixMilli(), MaxTimestamp: ahead.UnixMilli(),
	}
	batch.Length = int32(len(batch.AppendTo(nil)) - 12)
	batch.CRC = int32(crc32.Checksum(batch.AppendTo(nil)[21:], crc32.MakeTable(crc32.Castagnoli)))
	for epoch, corrected := range map[int32]bool{1: true, 2: false} {
		b := &transport{}
		b.clocks.observe(7, shown)
		got, err := b.fetcher(topicPartition{"orders_retry.1000", 0}).unpack(&kmsg.FetchResponseTopicPartition{
			RecordBatches: batch.AppendTo(nil),
		}, 0, leadership{id: 7, epoch: epoch})
		require.NoError(t, err)
		require.Len(t, got.records, 1)
		now, _ := b.clocks.now(7)
		require.Equal(t, corrected, now.Sub(shown) > 30*time.Minute, "epoch %d", epoch)
	}
}
