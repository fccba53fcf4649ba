package memory

// deque is a list of items that is cheap at both ends. The zero value is empty.
type deque struct {
	items []*item
	head  int // index of the first item; what stands before it is free
}

func (d *deque) len() int { return len(d.items) - d.head }

func (d *deque) pushBack(it *item) {
	if d.head > 0 && len(d.items) == cap(d.items) {
		// Use the free room in front before growing, but only when it is at least half: then copying is paid for by
		// the pops that made the room.
		if d.head >= len(d.items)/2 {
			n := copy(d.items, d.items[d.head:])
			clear(d.items[n:])
			d.items, d.head = d.items[:n], 0
		}
	}
	d.items = append(d.items, it)
}

func (d *deque) pushFront(it *item) {
	if d.head == 0 {
		room := max(8, len(d.items))
		grown := make([]*item, room+len(d.items))
		copy(grown[room:], d.items)
		d.items, d.head = grown, room
	}
	d.head--
	d.items[d.head] = it
}

// popFront returns nil when the deque is empty.
func (d *deque) popFront() *item {
	if d.len() == 0 {
		return nil
	}
	it := d.items[d.head]
	d.items[d.head] = nil
	d.head++
	if d.head == len(d.items) {
		d.items, d.head = d.items[:0], 0
	}
	return it
}

// all returns the items in order. It is valid until the next change.
func (d *deque) all() []*item { return d.items[d.head:] }
