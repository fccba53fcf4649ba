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

// SetWire sets the edit from its JSON form.
func (e *Edit) SetWire(w *wire.Edit) {
	*e = Edit{JQ: w.JQ, SetHeaders: w.SetHeaders, RemoveHeaders: w.RemoveHeaders, Payload: w.PayloadBase64}
	if w.Payload != nil {
		e.Payload = []byte(*w.Payload)
	}
}
