package memory

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestDeque_IsAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var (
			d    deque
			list []*item
		)
		t.Repeat(map[string]func(*rapid.T){
			"pushBack": func(*rapid.T) {
				it := new(item)
				d.pushBack(it)
				list = append(list, it)
			},
			"pushFront": func(*rapid.T) {
				it := new(item)
				d.pushFront(it)
				list = append([]*item{it}, list...)
			},
			"popFront": func(t *rapid.T) {
				it := d.popFront()
				if len(list) == 0 {
					require.Nil(t, it)
					return
				}
				require.Same(t, list[0], it)
				list = list[1:]
			},
			"": func(t *rapid.T) {
				require.Equal(t, len(list), d.len())
				for i, it := range d.all() {
					require.Same(t, list[i], it)
				}
			},
		})
	})
}
