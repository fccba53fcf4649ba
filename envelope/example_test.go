package envelope_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

func Example() {
	order := map[string]any{"order_id": 1234}
	e, err := envelope.New("checkout-api", "orders", order, map[string]string{"correlation_id": "abc-123"},
		envelope.ID("550e8400-e29b-41d4-a716-446655440000"),
		envelope.CreatedAt(time.Date(2026, 2, 28, 22, 53, 42, 0, time.UTC)),
		envelope.InMode(envelope.Structured))
	if err != nil {
		fmt.Println(err)
		return
	}
	m := e.Message() // publish it with any Watermill publisher
	fmt.Println(string(m.Payload))

	failed := envelope.RecordFailure(m,
		envelope.Failure{Err: envelope.Error{Message: "gateway timeout", Code: "504"}, Retry: 1})
	fmt.Println(string(failed.Payload[len(failed.Payload)-78:]))
	// Output:
	// {"message_id":"550e8400-e29b-41d4-a716-446655440000","timestamp":"2026-02-28T22:53:42+00:00","version":"1.0","source":"checkout-api","queue":"orders","data":{"order_id":1234},"metadata":{"correlation_id":"abc-123"},"error":null,"retry_count":0}
	// "error":{"message":"gateway timeout","code":"504","trace":""},"retry_count":1}
}

func ExampleHandle() {
	type Order struct {
		ID int `json:"order_id"`
	}
	handler := envelope.Handle(func(_ context.Context, o Order) error {
		fmt.Println("order", o.ID)
		return nil
	})

	_ = handler(message.NewMessage("id-1", []byte(`{"order_id":1234}`)))
	err := handler(message.NewMessage("id-2", []byte(`{"order_id":"?"}`)))
	var permanent interface{ Permanent() bool }
	fmt.Println(errors.As(err, &permanent) && permanent.Permanent())
	// Output:
	// order 1234
	// true
}

func ExampleFromMessage() {
	foreign := message.NewMessage("id-1", []byte("not even JSON"))
	foreign.Metadata.Set("tenant", "acme")

	e, err := envelope.FromMessage(foreign)
	fmt.Println(e.MessageID(), e.Mode(), e.Attempt(), e.Meta("tenant"), err)
	fmt.Println(string(e.Data()))
	// Output:
	// id-1 binary 1 acme <nil>
	// not even JSON
}

func ExampleEnvelope_WithMode() {
	e, _ := envelope.New("sensors", "readings", []byte{0xff, 0x00}, map[string]string{"priority": "5"},
		envelope.ID("id-1"))
	structured, _ := e.WithMode(envelope.Structured)
	fmt.Printf("%v %x %s\n", structured.Mode(), structured.Data(), structured.Meta("priority"))

	binary, _ := structured.WithMode(envelope.Binary)
	fmt.Printf("%x %s\n", binary.Message().Payload, binary.Message().Metadata["priority"])
	// Output:
	// structured ff00 5
	// ff00 5
}

func ExampleEnvelope_WithError() {
	e, _ := envelope.New("checkout-api", "orders", nil, nil)
	failed := e.WithIncrementedRetry().WithError(envelope.Error{Message: "gateway timeout", Code: "504"})
	fmt.Println(e.RetryCount(), e.Err())
	fmt.Println(failed.RetryCount(), failed.Err().Message, failed.MessageID() == e.MessageID())
	// Output:
	// 0 <nil>
	// 1 gateway timeout true
}

func ExampleData() {
	e, _ := envelope.New("checkout-api", "orders", []byte(`{"order_id":9007199254740993}`), nil)
	order, err := envelope.Data[struct {
		ID int64 `json:"order_id"`
	}](e)
	fmt.Println(order.ID, err)
	// Output: 9007199254740993 <nil>
}

func ExampleReadControl() {
	m := message.NewMessage("id-1", nil)
	m.Metadata.Set(envelope.KeyRetryCount, "2")
	m.Metadata.Set(envelope.KeyOriginalDelay, "10000")
	c, err := envelope.ReadControl(m)
	fmt.Println(c.MessageID, c.RetryCount, c.OriginalDelay, err)

	m.Metadata.Set(envelope.KeyRetryCount, "-1")
	c, err = envelope.ReadControl(m)
	fmt.Println(c.RetryCountInvalid, err)
	// Output:
	// id-1 2 10s <nil>
	// true <nil>
}

func ExampleRecordFailure() {
	m := message.NewMessage("id-1", []byte("any payload"))
	failed := envelope.RecordFailure(m, envelope.Failure{
		Err: envelope.Error{Message: "connection reset", Code: "ECONNRESET"}, Class: "*net.OpError", Retry: 1,
	})
	fmt.Println(string(failed.Payload))
	fmt.Println(failed.Metadata[envelope.KeyRetryCount], failed.Metadata[envelope.KeyErrorMessage],
		failed.Metadata[envelope.KeyErrorClass])
	// Output:
	// any payload
	// 1 connection reset *net.OpError
}

func ExampleRecordDeferral() {
	m := message.NewMessage("id-1", nil)
	waiting := envelope.RecordDeferral(m, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	since, ok := envelope.DeferredSince(waiting)
	fmt.Println(since, ok)
	// Output: 2026-03-01 12:00:00 +0000 UTC true
}

func ExampleStartOver() {
	m := envelope.RecordFailure(message.NewMessage("id-1", nil), envelope.Failure{Retry: 2})

	received, _ := envelope.ReadControl(m) // in a handler that publishes a copy on its own
	next := m.Copy()
	envelope.StartOver(next, &received)
	c, _ := envelope.ReadControl(next)
	fmt.Println(received.RetryCount, c.MessageID, c.RetryCount)
	// Output: 2 id-1 0
}

func ExampleSetDelay() {
	m := message.NewMessage("id-1", nil)
	envelope.SetDelay(m, 10*time.Second) // the producer

	d, asked := envelope.TakeDelay(m) // the publisher
	fmt.Println(d, asked, m.Metadata)
	// Output: 10s true map[x-original-delay:10000]
}

func ExamplePrepareRedrive() {
	dead := envelope.RecordFailure(message.NewMessage("id-1", nil),
		envelope.Failure{Retry: 4, Reason: envelope.ReasonExhausted})
	again := envelope.PrepareRedrive(dead, envelope.Redrive{ID: "17", Count: 1})
	c, _ := envelope.ReadControl(again)
	fmt.Println(c.MessageID, c.RetryCount, c.RedriveID, envelope.RedriveCount(again))
	// Output: id-1 0 17 1
}

func ExampleOriginFrom() {
	m := message.NewMessage("", nil)
	m.SetContext(envelope.WithOrigin(m.Context(),
		&envelope.Origin{Broker: "kafka", Topic: "orders", Consumer: "billing", Position: "3/1042"}))

	origin, _ := envelope.OriginFrom(m.Context())
	fmt.Println(origin.Consumer, envelope.StableID(origin) == envelope.Identify(m))
	// Output: billing true
}

func ExampleDeadLetter_Envelope() {
	d := envelope.DeadLetter{
		Message: message.NewMessage("id-1", []byte(`{"order_id":1`)),
		Reason:  envelope.ReasonPermanent,
	}
	fmt.Println(d.Envelope().MessageID(), string(d.Envelope().Data()))
	// Output: id-1 {"order_id":1
}

func ExampleIsBrokerMade() {
	fmt.Println(envelope.IsBrokerMade("x-death"), envelope.IsBrokerMade(envelope.KeyRetryCount))
	// Output: true false
}
