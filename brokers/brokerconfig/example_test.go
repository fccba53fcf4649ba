package brokerconfig_test

import (
	"fmt"

	"github.com/redrive-go/redrive/brokers/brokerconfig"
)

func ExampleParse() {
	config, err := brokerconfig.Parse([]byte(`
url: mem://
group: billing
naming: {preset: laravel}
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(config.Group, config.Naming.For("orders", config.Group).Dead)

	_, err = brokerconfig.Parse([]byte("url: mem://\nretries: 3\n"))
	fmt.Println(err)
	// Output:
	// billing orders_dlq
	// brokerconfig: line 2: unknown field "retries"
}
