package main

import (
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/redrive-go/redrive/brokers/brokermetrics"
	"github.com/redrive-go/redrive/dlq/dlqmetrics"
	"github.com/redrive-go/redrive/internal/config"
)

// metrics are those of a server: of its store, runs and collector, of the process, and of what else is registered.
type metrics struct {
	registry *prometheus.Registry
	letters  *dlqmetrics.Metrics
}

// newMetrics returns nil if the configuration disables them.
func newMetrics(cfg *config.Metrics) (*metrics, error) {
	if cfg.Off {
		return nil, nil //nolint:nilnil // none requested
	}
	letters, err := dlqmetrics.New(dlqmetrics.Config{LegacyNames: cfg.LegacyNames})
	if err != nil {
		return nil, err
	}
	m := &metrics{registry: prometheus.NewRegistry(), letters: letters}
	m.registry.MustRegister(letters, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m, nil
}

// watch starts to show the server's metrics; before that there are none.
func (m *metrics) watch(s *server) {
	m.letters.Watch(dlqmetrics.Sources{Letters: s.letters, Collector: s.collector})
	m.registry.MustRegister(brokermetrics.New(s.brokers))
}

func (m *metrics) handler(logger *slog.Logger) http.Handler {
	return promhttp.InstrumentMetricHandler(m.registry, promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		Registry: m.registry, ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
		ErrorHandling:     promhttp.ContinueOnError,
		EnableOpenMetrics: true,
	}))
}
