package payload

import (
	"github.com/redrive-go/redrive/dlq/internal/mirror"
	"github.com/redrive-go/redrive/dlq/wire"
)

var diffs = mirror.New[Diff, wire.Diff](map[string]string{"Lines": ""})

// Wire is the JSON form of the difference.
func (d *Diff) Wire() wire.Diff {
	w := diffs.To(d)
	w.Lines = []wire.DiffLine{}
	for _, l := range d.Lines {
		w.Lines = append(w.Lines, wire.DiffLine{Op: string(l.Op), Text: l.Text})
	}
	return w
}

// SetWire sets the difference from its JSON form.
func (d *Diff) SetWire(w *wire.Diff) {
	*d = diffs.From(w)
	for _, l := range w.Lines {
		line := Line{Op: ' ', Text: l.Text}
		if l.Op != "" {
			line.Op = l.Op[0]
		}
		d.Lines = append(d.Lines, line)
	}
}
