package dlq

import "github.com/redrive-go/redrive/dlq/wire"

// Wire is the edit's JSON form.
func (e *Edit) Wire() wire.Edit {
	w := wire.Edit{JQ: e.JQ, SetHeaders: e.SetHeaders, RemoveHeaders: e.RemoveHeaders}
	if e.Payload != nil {
		var body wire.Body
		body.SetBytes(e.Payload)
		w.Payload, w.PayloadBase64 = body.Payload, body.PayloadBase64
	}
	return w
}

// SetWire makes the edit what its JSON form says.
func (e *Edit) SetWire(w *wire.Edit) {
	*e = Edit{JQ: w.JQ, SetHeaders: w.SetHeaders, RemoveHeaders: w.RemoveHeaders, Payload: w.PayloadBase64}
	if w.Payload != nil {
		e.Payload = []byte(*w.Payload)
	}
}

// Wire is the report's JSON form.
func (r *Recurrence) Wire() wire.Recurrence {
	causes := func(list []RecurringCause) []wire.RecurringCause {
		made := make([]wire.RecurringCause, 0, len(list))
		for i := range list {
			made = append(made, wire.RecurringCause(list[i]))
		}
		return made
	}
	return wire.Recurrence{
		From: r.From, To: r.To, Now: r.Now, Before: r.Before, New: causes(r.New), Growing: causes(r.Growing), Returning: causes(r.Returning),
		Fixed: causes(r.Fixed), Steady: causes(r.Steady), Incomplete: r.Incomplete,
	}
}

// SetWire makes the report what its JSON form says.
func (r *Recurrence) SetWire(w *wire.Recurrence) {
	causes := func(list []wire.RecurringCause) []RecurringCause {
		made := make([]RecurringCause, 0, len(list))
		for i := range list {
			made = append(made, RecurringCause(list[i]))
		}
		return made
	}
	*r = Recurrence{
		From: w.From, To: w.To, Now: w.Now, Before: w.Before, New: causes(w.New), Growing: causes(w.Growing), Returning: causes(w.Returning),
		Fixed: causes(w.Fixed), Steady: causes(w.Steady), Incomplete: w.Incomplete,
	}
}
