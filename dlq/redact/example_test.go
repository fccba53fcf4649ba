package redact_test

import (
	"fmt"

	"github.com/redrive-go/redrive/dlq/redact"
)

func Example() {
	rules, err := redact.New(redact.Config{
		Paths:   []string{"$.card.number", "$..iban"},
		Headers: []string{"authorization", "x-api-*"},
		Texts:   []string{`\d{3}-\d{2}-\d{4}`},
	})
	if err != nil {
		fmt.Println(err) // names every invalid rule
		return
	}
	fmt.Println(string(rules.Payload("application/json", []byte(`{"order": 17, "card": {"number": "4111 1111", "name": "A"}}`))))
	fmt.Println(rules.Header("Authorization", "Bearer abc"))
	fmt.Println(rules.Text("no customer with 078-05-1120"))
	// Output:
	// {"order": 17, "card": {"number": "[redacted]", "name": "A"}}
	// [redacted]
	// no customer with [redacted]
}
