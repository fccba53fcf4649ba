package rabbitmq_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
)

var update = flag.Bool("update", false, "rewrite the golden plans")

// Each preset declares the names and arguments of its system.
func TestPlan_Golden(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg   brokers.Config
		topic string
	}{
		"default": {brokers.Config{Delays: []time.Duration{10 * time.Second}}, "orders"},
		"group": {brokers.Config{
			Group: "billing", Params: brokers.Params{"grid": "false"},
			Delays: []time.Duration{time.Second},
		}, "orders"},
		"laravel": {brokers.Config{Naming: brokers.Laravel(), Params: brokers.Params{"grid": "false"}}, "orders"},
		"laravel one delay": {brokers.Config{
			Naming: brokers.Laravel(), Delays: []time.Duration{time.Second}, Params: brokers.Params{"grid": "false"},
		}, "orders"},
		"delayed backoff": {brokers.Config{
			Naming: brokers.DelayedBackoff(), Params: brokers.Params{"grid": "false"},
			Delays: []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second},
		}, "order-reminder"},
		"service bus": {brokers.Config{
			Naming: brokers.ServiceBus("easyweek"), Group: "invoice-service", Params: brokers.Params{"grid": "false"},
			Delays: []time.Duration{time.Second, 5 * time.Second},
		}, "invoice.*"},
		"service bus plugin": {brokers.Config{
			Naming: brokers.ServiceBus("easyweek"), Group: "invoice-service", Params: brokers.Params{"transport": "plugin"},
		}, "invoice.*"},
		"ttl cycle": {
			brokers.Config{Naming: brokers.TTLCycle("sme.sgp.workers")},
			"sgp.fechamento.reabertura.notificacao.dre",
		},
		"ttl cycle adopted": {brokers.Config{
			Naming: brokers.TTLCycle("sme.sgp.workers"),
			Params: brokers.Params{"declare": "adopt", "retry-queue-type": "classic"},
		}, "sgp.fechamento.reabertura.notificacao.dre"},
		"classic": {brokers.Config{Naming: brokers.Laravel(), Params: brokers.Params{
			"queue-type": "classic", "retry-queue-type": "classic", "grid": "false",
		}}, "orders"},
		"none": {brokers.Config{Params: brokers.Params{"declare": "none"}}, "orders"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.cfg.URL = "amqp://localhost/"
			plan, err := rabbitmq.PlanConfig(tc.cfg, tc.topic)
			require.NoError(t, err)
			file := filepath.Join("testdata", "plan_"+strings.ReplaceAll(name, " ", "_")+".txt")
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(plan.String()), 0o644))
			}
			golden, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(golden), plan.String())
		})
	}
}

// A limit of -1 means "no limit" to RabbitMQ 4 and "drop at the first requeue" to RabbitMQ 3; a delay queue that
// expires is deleted with its messages; and without reject-publish, at-least-once is silently ignored.
func TestPlan_AvoidsKnownPitfalls(t *testing.T) {
	for _, preset := range brokers.Presets() {
		plan, err := rabbitmq.PlanConfig(brokers.Config{
			URL: "amqp://localhost/", Group: "g", Naming: brokers.NameScheme{Preset: preset, Project: "p"},
		}, "topic")
		require.NoError(t, err)
		for _, q := range plan.All().Queues {
			require.NotContains(t, q.Args, "x-expires", q.Name)
			require.Equal(t, "quorum", q.Args["x-queue-type"], q.Name)
			if limit, ok := q.Args["x-delivery-limit"]; ok {
				require.Positive(t, limit, q.Name)
			}
			if _, deadLetters := q.Args["x-dead-letter-exchange"]; deadLetters {
				require.Equal(t, "at-least-once", q.Args["x-dead-letter-strategy"], q.Name)
				require.Equal(t, "reject-publish", q.Args["x-overflow"], q.Name)
			}
		}
	}
}

func TestPlanConfig_Faults(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg  brokers.Config
		want string
	}{
		"an unknown parameter": {brokers.Config{URL: "amqp://localhost/?prefetsch=3"}, "prefetch"},
		"crash limit too high": {brokers.Config{URL: "amqp://localhost/?crash-limit=20&delivery-limit=20"}, "must be below delivery-limit 20"},
		"a delay too long":     {brokers.Config{URL: "amqp://localhost/?delays=800h"}, "the longest is 720h0m0s"},
		"an unknown transport": {brokers.Config{URL: "amqp://localhost/?transport=pigeon"}, "ttl, plugin, reject"},
		"no unlimited limit":   {brokers.Config{URL: "amqp://localhost/?delivery-limit=-1"}, "delivery-limit"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := rabbitmq.PlanConfig(tc.cfg, "orders")
			require.ErrorContains(t, err, tc.want)
		})
	}
}
