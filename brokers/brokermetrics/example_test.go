package brokermetrics_test

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokermetrics"
	"github.com/redrive-go/redrive/brokers/memory"
)

func Example() {
	broker, err := memory.New(brokers.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer broker.Close()
	registry := prometheus.NewRegistry() // or prometheus.DefaultRegisterer
	registry.MustRegister(brokermetrics.New(map[string]brokers.Broker{"main": broker}))
	families, err := registry.Gather()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, f := range families {
		if f.GetName() == "redrive_broker_up" {
			fmt.Println(f.GetName(), f.GetMetric()[0].GetGauge().GetValue())
		}
	}
	// Output: redrive_broker_up 1
}
