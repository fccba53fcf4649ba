package main

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/examples/internal/demo"
)

// report prints the outcomes of the events, and reports whether each event has exactly one and the store has all dead
// letters.
func (sv *service) report(ctx context.Context, w io.Writer, took time.Duration, s settings) bool {
	_, _ = fmt.Fprintf(w, "\nEvents after %s, %d retries:\n\n", took.Round(10*time.Millisecond), sv.ledger.Retries())
	balanced, dead := sv.ledger.Balance(w), 0
	for _, topic := range topics {
		dead += sv.ledger.Counts(topic).Dead
	}
	_, _ = fmt.Fprintf(w, "\n%d employees on the payroll.\n", sv.registry.headcount())
	if s.fix != "" {
		return sv.reportFix(ctx, w, s.fix) && balanced
	}

	entries, err := demo.Entries(ctx, sv.letters, dlq.Filter{CorrelationID: sv.run})
	if err != nil {
		_, _ = fmt.Fprintln(w, "employees:", err)
		return false
	}
	printCauses(w, entries)
	_, _ = fmt.Fprintf(w, "\n%d invalid events, %d rows in dlq_events of %s.\n", dead, len(entries), demo.Place(s.DLQURL))
	if len(entries) != dead {
		_, _ = fmt.Fprintln(w, "DOES NOT BALANCE: each dead event must have one row")
		balanced = false
	}
	faults := map[string]int{}
	for _, e := range entries {
		faults[e.SourceID]++
	}
	var mendable []string // employees with only this fault, the same ones in whatever order they died
	for _, e := range entries {
		if e.ErrorMessage == onlyCPF && faults[e.SourceID] == 1 {
			mendable = append(mendable, e.SourceID)
		}
	}
	if len(mendable) > 0 {
		_, _ = fmt.Fprintf(w, "Correct one and send it back:\n\n    go run ./examples/employees -fix %s -set "+
			"cpf=529.982.247-25\n\n", slices.Min(mendable))
	}
	return balanced
}

const onlyCPF = "Falha na validação: CPF inválido" // a fault that one field can fix

// printCauses is the system's second query, the most frequent errors.
func printCauses(w io.Writer, entries []dlq.Entry) {
	occurrences := map[string]int{}
	for i := range entries {
		occurrences[entries[i].Cause]++
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "\noccurrences\terror_message")
	for _, cause := range slices.SortedFunc(maps.Keys(occurrences), func(a, b string) int {
		return cmp.Or(cmp.Compare(occurrences[b], occurrences[a]), cmp.Compare(a, b))
	}) {
		_, _ = fmt.Fprintf(table, "%11d\t%s\n", occurrences[cause], cause)
	}
	_ = table.Flush()
}

// reportFix prints the outcome of the corrected event.
func (sv *service) reportFix(ctx context.Context, w io.Writer, employee string) bool {
	entry, err := sv.deadLetterOf(ctx, employee)
	if err != nil {
		_, _ = fmt.Fprintln(w, "employees:", err)
		return false
	}
	_, _ = fmt.Fprintf(w, "%s is %s after %d redrive(s).\n", employee, entry.Status, entry.RedriveCount)
	if entry.Status != dlq.Resolved {
		_, _ = fmt.Fprintln(w, "It died again of:", entry.ErrorMessage)
		return false
	}
	return true
}

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
