package main

import (
	"encoding/json"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/config"
)

// Before a redrive doctor and a dry run name the targets of pending dead letters that no consumer reads: also those of
// a topic whose letters are not among the oldest.
func TestReaders(t *testing.T) {
	hermetic(t)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.DefaultNumPartitions(1),
		kfake.SeedTopics(1, "orders", "invoices"))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	url := "kafka://" + strings.Join(cluster.ListenAddrs(), ",")
	store := filepath.Join(t.TempDir(), "dead.db")
	letters, err := dlq.Open(t.Context(), "sqlite:"+store, dlq.WithoutSpool())
	require.NoError(t, err)
	for i := range lettersOfTopic + 2 {
		origin := envelope.Origin{Broker: "kafka", Topic: "orders", Consumer: "billing"}
		if i > lettersOfTopic {
			origin = envelope.Origin{Broker: "kafka", Topic: "invoices", Consumer: "mail"}
		}
		require.NoError(t, letters.DeadLetter(t.Context(), &envelope.DeadLetter{
			Message: message.NewMessage(strconv.Itoa(i), []byte("{}")), Reason: envelope.ReasonExhausted,
			Err: envelope.Error{Message: "timeout"}, Origin: origin, Attempts: 4, At: time.Now(),
		}))
	}
	require.NoError(t, letters.Close())
	service, err := brokers.Open(t.Context(), url+"?group=billing")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, service.Close()) })
	_, err = service.Subscriber().Subscribe(t.Context(), "orders")
	require.NoError(t, err)

	findings := func() map[string]finding {
		code, stdout, stderr := command(t, "doctor", "--store", store, "--broker", url, "--timeout", "1m", "-o", "json")
		require.Equal(t, exitOK, code, stdout+stderr)
		var list []finding
		require.NoError(t, json.Unmarshal([]byte(stdout), &list))
		found := map[string]finding{}
		for _, f := range list {
			found[f.What] = f
		}
		return found
	}
	var found map[string]finding
	require.Eventually(t, func() bool { // the group has to form
		found = findings()
		return strings.Contains(found["readers"].Finding, "2 targets of pending dead letters: 1 with a reader")
	}, 2*time.Minute, 50*time.Millisecond)
	require.NotContains(t, found, "readers of orders")
	require.Equal(t, "warning", found["readers of invoices"].Severity)
	require.Contains(t, found["readers of invoices"].Finding, "no consumer reads invoices of mail")
	require.Contains(t, found["readers of invoices"].Remedy, "start the consumer")

	for topic, warned := range map[string]bool{"orders": false, "invoices": true} {
		code, stdout, stderr := command(t, "dlq", "redrive", "--topic", topic, "--dry-run", "--store", store, "--broker", url)
		require.Equal(t, exitOK, code, stderr)
		require.Equal(t, warned, strings.Contains(stdout+stderr, "warning: no consumer reads"), stdout+stderr)
	}
	code, stdout, stderr := command(t, "dlq", "redrive", strconv.Itoa(lettersOfTopic+2), "--dry-run", "--store", store,
		"--broker", url)
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stdout+stderr, "warning: no consumer reads invoices of mail")
}

// A broker that does not answer may be the one that dead letters came from, however its URL spells the scheme: the
// other one must not be asked about their consumers.
func TestReaders_OfABrokerThatDoesNotAnswer(t *testing.T) {
	_, _, letters := interruptible(t)
	east, err := memory.New(brokers.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, east.Close()) })
	for url, asked := range map[string]bool{"kafka://west": true, "amqp://west": false, "amqps://west": false} {
		cfg := &config.Config{Brokers: map[string]config.Broker{
			"east": {Config: brokers.Config{URL: "amqp://east"}}, "west": {Config: brokers.Config{URL: url}},
		}}
		d := &doctor{
			app:    &app{letters: letters, err: io.Discard, cfg: cfg},
			opened: map[string]brokers.Broker{"east": east},
		}
		found, err := d.previewer(cfg)
		require.NoError(t, err)
		require.Equal(t, asked, found != nil, url)
	}
}
