package kafka_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/envelope"
)

func ExamplePlanConfig() {
	plan, err := kafka.PlanConfig(brokers.Config{URL: "kafka://localhost?group=billing&replication=3"}, "orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, t := range plan.Topics[:4] {
		fmt.Println(t.Name)
	}
	fmt.Println("...", len(plan.Topics), "topics, created when they are needed")
	// Output:
	// orders
	// orders.billing_retry.100
	// orders.billing_retry.200
	// orders.billing_retry.500
	// ... 48 topics, created when they are needed
}

// A collector may read dead letters before there are any: it creates their topic with the necessary settings, because
// an ordinary topic would delete dead letters after a week.
func TestPlan_DeadLetterTopicCreatedByAReader(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	for i, params := range [][]string{nil, {"naming=store-only"}, {"naming=laravel"}} {
		b := open(t, c, params...)
		topic := fmt.Sprintf("orders-%d", i)
		subscribe(t, b, topic)
		plan := b.Plan(topic)
		found := false
		for _, planned := range plan.Topics {
			if planned.Purpose == "the dead letter topic" {
				found = true
				subscribe(t, b, planned.Name)
			}
		}
		require.True(t, found)
		findings, err := b.Check(t.Context(), plan)
		require.NoError(t, err)
		for _, f := range findings {
			require.True(t, f.Missing, "%s", f)
		}
		described, err := administer(t, c).DescribeTopicConfigs(t.Context(), topic)
		require.NoError(t, err)
		for _, setting := range described[0].Configs {
			require.NotEqual(t, kmsg.ConfigSourceDynamicTopicConfig, setting.Source, "an ordinary topic is not changed: %s",
				setting.Key)
		}
	}
}

// If services may not create topics, an operator applies the plan, and nothing else is created.
func TestPlan_AppliedOnceIsEnough(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	b := open(t, c, "partitions=3", "auto-create=false", "order=key")
	topic := name("orders")
	err := b.Publisher().Publish(topic, newMessage("m", ""))
	require.ErrorIs(t, err, brokers.ErrUnroutable)
	_, err = b.Subscriber().Subscribe(t.Context(), topic)
	require.ErrorIs(t, err, brokers.ErrUnroutable)
	require.ErrorContains(t, err, "auto-create=true")

	plan := b.Plan(topic)
	findings, err := b.Check(t.Context(), plan)
	require.NoError(t, err)
	require.Len(t, findings, len(plan.Topics))
	require.NoError(t, b.Apply(t.Context(), plan))
	findings, err = b.Check(t.Context(), plan)
	require.NoError(t, err)
	require.Empty(t, findings)
	require.NoError(t, b.Apply(t.Context(), plan), "again")

	messages := subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, newMessage("m", "")))
	m := receive(t, messages)
	origin, _ := envelope.OriginFrom(m.Context())
	require.NoError(t, b.Reschedule(t.Context(), *origin, m.Copy(), 0))
	m.Ack()
	receive(t, messages).Ack()
}

// A topic created with other settings is reported, with the remedy.
func TestPlan_CheckFindsDangerousSettings(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	b := open(t, c, "partitions=2")
	topic := name("orders")
	admin, err := sarama.NewClusterAdmin(c.ListenAddrs(), sarama.NewConfig())
	require.NoError(t, err)
	defer func() { require.NoError(t, admin.Close()) }()
	compact, short := "compact", "1000"
	require.NoError(t, admin.CreateTopic(topic+".billing_retry.1000", &sarama.TopicDetail{
		NumPartitions: 1, ReplicationFactor: 1,
		ConfigEntries: map[string]*string{"cleanup.policy": &compact, "retention.ms": &short},
	}, false))
	require.NoError(t, b.Apply(t.Context(), b.Plan(topic)))

	findings, err := b.Check(t.Context(), b.Plan(topic))
	require.NoError(t, err)
	var text []string
	for _, f := range findings {
		require.Equal(t, topic+".billing_retry.1000", f.Topic)
		text = append(text, f.String())
	}
	all := strings.Join(text, "\n")
	for _, want := range []string{
		"has 1 partitions", "cleanup.policy is compact", "retention.ms is 1000",
		"clocks of producers",
	} {
		require.Contains(t, all, want)
	}
}

func TestOpen_RefusesImpossibleSettings(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	for params, want := range map[string]string{
		"retry={queue}_retry":                "{delay}",
		"retry={group}_again_{delay}":        "need {topic}",
		"delayed=later.{delay}":              "need {topic}",
		"naming=service-bus&project=p":       "patterns",
		"tls-ca=x":                           "need tls=true",
		"sasl=plain":                         "user name",
		"order=strict":                       "must be one of none, key",
		"max-message-bytes=1":                "at least",
		"concurency=3":                       "concurrency",
		"tls=true&tls-ca=/nowhere":           "tls-ca",
		"tls=true&tls-cert=/nowhere&tls-key": "tls-cert",
	} {
		_, err := brokers.Open(t.Context(), urlOf(c, params))
		require.ErrorContains(t, err, want, params)
	}
	_, err := brokers.Open(t.Context(), "kafka://user:s3cret@"+c.ListenAddrs()[0]+"/orders")
	require.ErrorContains(t, err, "path")
	require.NotContains(t, err.Error(), "s3cret")

	b, err := brokers.Open(t.Context(), urlOf(c))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	_, err = b.Subscriber().Subscribe(t.Context(), "orders")
	require.ErrorContains(t, err, "group")
	require.Error(t, b.Publisher().Publish("no spaces", newMessage("m", "")))
}
