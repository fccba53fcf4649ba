package dlq

import "github.com/redrive-go/redrive/dlq/wire"

// SetWire sets the edit from its JSON form.
func (e *Edit) SetWire(w *wire.Edit) {
	*e = Edit{JQ: w.JQ, SetHeaders: w.SetHeaders, RemoveHeaders: w.RemoveHeaders, Payload: w.PayloadBase64}
	if w.Payload != nil {
		e.Payload = []byte(*w.Payload)
	}
}
