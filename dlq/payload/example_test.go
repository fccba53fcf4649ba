package payload_test

import (
	"context"
	"fmt"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/payload"
)

// An edit keeps every byte that it does not touch: the order of keys, the white space, the number that no float64 can
// hold.
func ExampleEdit() {
	body := &driver.Body{Payload: []byte(`{"id": 90071992547409931, "amount": -5, "currency":"EUR"}`)}
	edited, err := payload.Edit(context.Background(), &payload.InProcess{}, ".amount = 5", body)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(edited.Payload))
	fmt.Print(payload.Compare(body, edited))
	// Output:
	// {"id": 90071992547409931, "amount": 5, "currency":"EUR"}
	//  {
	//    "id": 90071992547409931,
	// -  "amount": -5,
	// +  "amount": 5,
	//    "currency": "EUR"
	//  }
}
