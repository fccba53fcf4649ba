package payload

import "github.com/redrive-go/redrive/dlq/wire"

// Wire is the JSON form of the difference.
func (d *Diff) Wire() wire.Diff {
	w := wire.Diff{
		Headers: []wire.HeaderDiff{}, Lines: []wire.DiffLine{}, PayloadChanged: d.PayloadChanged, Binary: d.Binary, Before: d.Before, After: d.After,
	}
	for _, h := range d.Headers {
		w.Headers = append(w.Headers, wire.HeaderDiff{
			Name: wire.Text(h.Name), Before: wire.Text(h.Before), After: wire.Text(h.After), Added: h.Added, Removed: h.Removed,
		})
	}
	for _, l := range d.Lines {
		w.Lines = append(w.Lines, wire.DiffLine{Op: string(l.Op), Text: l.Text})
	}
	return w
}

// SetWire makes the difference what its JSON form says.
func (d *Diff) SetWire(w *wire.Diff) {
	*d = Diff{PayloadChanged: w.PayloadChanged, Binary: w.Binary, Before: w.Before, After: w.After}
	for i := range w.Headers {
		h := &w.Headers[i]
		d.Headers = append(d.Headers, Header{
			Name: string(h.Name), Before: string(h.Before), After: string(h.After), Added: h.Added, Removed: h.Removed,
		})
	}
	for _, l := range w.Lines {
		line := Line{Op: ' ', Text: l.Text}
		if l.Op != "" {
			line.Op = l.Op[0]
		}
		d.Lines = append(d.Lines, line)
	}
}
