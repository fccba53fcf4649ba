package wire_test

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/dlq/wire"
)

// A line of an export is a Letter: the entry with every revision of its message.
func ExampleLetter() {
	line := `{"v":2,"entry":{"id":7,"status":"PENDING","topic":"orders","error_message":"bank: timeout"},` +
		`"bodies":[{"revision":0,"headers":{"tenant":"acme"},"payload":"{\"order\":7}"}]}`
	var letter wire.Letter
	if err := json.Unmarshal([]byte(line), &letter); err != nil {
		fmt.Println(err) // of a *wire.VersionError, if another version wrote the line
		return
	}
	original := letter.Bodies[0]
	fmt.Println(letter.Entry.ID, letter.Entry.Status, letter.Entry.ErrorMessage)
	fmt.Println(original.Headers["tenant"], string(original.Bytes()))
	// Output:
	// 7 PENDING bank: timeout
	// acme {"order":7}
}

// A filter is validated where it is built, before any request.
func ExampleFilter() {
	field, err := wire.ParsePayloadField("customer.id=42")
	if err != nil {
		fmt.Println(err)
		return
	}
	filter := wire.Filter{
		Statuses: []wire.Status{wire.Pending}, Topic: "orders", PayloadFields: []wire.PayloadField{field},
	}
	data, err := json.Marshal(filter)
	fmt.Println(string(data), err, filter.Validate())
	// Output:
	// {"statuses":["PENDING"],"topic":"orders","payload_fields":["customer.id=42"]} <nil> <nil>
}

// A filter is frozen before its entries are counted: what a person confirms is then what is changed.
func ExampleFilter_Freeze() {
	asked := time.Date(2026, 2, 28, 22, 53, 0, 300, time.UTC)
	for _, f := range []wire.Filter{
		{Topic: "orders"},
		{To: asked.Add(time.Hour)},
		{To: asked.Add(-time.Hour)},
		{IDs: []int64{7}},
	} {
		f.Freeze(asked)
		fmt.Println(f.To.Format(time.DateTime))
	}
	// Output:
	// 2026-02-28 22:53:01
	// 2026-02-28 22:53:01
	// 2026-02-28 21:53:00
	// 0001-01-01 00:00:00
}
