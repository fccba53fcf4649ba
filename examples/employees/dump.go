package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/examples/internal/demo"
)

//go:embed employees.ndjson
var dumpFile []byte

// record is a line of the input: a Kafka record as "kcat -C -J" prints it. Its payload is text, JSON or not.
type record struct {
	Topic   string `json:"topic"`
	Key     string `json:"key"`
	Payload string `json:"payload"`
}

const batch = 100 // messages of one Publish, which the broker confirms together

// publishAll publishes the records of the input to the topics that they name.
func (sv *service) publishAll(ctx context.Context, input string, stdin io.Reader) error {
	reader, err := demo.Open(input, stdin, dumpFile)
	if err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	defer func() { _ = reader.Close() }()
	publisher := sv.broker.Publisher()
	waiting := map[string][]*message.Message{}
	flush := func(topic string, limit int) error {
		if len(waiting[topic]) < limit {
			return nil
		}
		if err := publisher.Publish(topic, waiting[topic]...); err != nil {
			return fmt.Errorf("publish to %s: %w", topic, err)
		}
		waiting[topic] = waiting[topic][:0]
		return nil
	}

	decoder := json.NewDecoder(bufio.NewReader(reader))
	for n := 1; ctx.Err() == nil; n++ {
		var r record
		if err := decoder.Decode(&r); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("record %d of the input is not what kcat -J prints: %w", n, err)
		}
		if !slices.Contains(topics, r.Topic) {
			return fmt.Errorf("record %d of the input: topic %q is not one of %v", n, r.Topic, topics)
		}
		m, err := sv.eventMessage(r)
		if err != nil {
			return err
		}
		waiting[r.Topic] = append(waiting[r.Topic], m)
		if err := flush(r.Topic, batch); err != nil {
			return err
		}
	}
	for _, topic := range topics {
		if err := flush(topic, 1); err != nil {
			return err
		}
	}
	return nil
}

// eventMessage returns the message of a record. On Kafka, events of one employee share a partition and keep their
// order.
func (sv *service) eventMessage(r record) (*message.Message, error) {
	e, err := envelope.New("hr", r.Topic, []byte(r.Payload), map[string]string{envelope.KeyCorrelationID: sv.run},
		envelope.EventNamed(r.Topic))
	if err != nil {
		return nil, err
	}
	m := e.Message()
	m.Metadata[envelope.KeyKafkaKey] = r.Key
	sv.ledger.Expect(r.Topic, e.MessageID())
	return m, nil
}
