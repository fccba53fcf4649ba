package access

import (
	"sync"
	"time"
)

const (
	// knownFor is how long a session or a token is trusted without asking the store: one that another process has ended
	// lasts that long here.
	knownFor = 5 * time.Second
	maxKnown = 10_000

	// lookupRate and lookupBurst limit how often an address may make us look for unknown credentials in the store.
	lookupRate, lookupBurst = 2, 100
)

// known remembers valid credentials by their digest. When it is full it forgets all of them. The zero value is
// empty; it is safe for concurrent use.
type known[K comparable, V any] struct {
	mu       sync.Mutex
	byDigest map[K]V
}

func (k *known[K, V]) get(digest K) (value V, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	value, ok = k.byDigest[digest]
	return value, ok
}

func (k *known[K, V]) put(digest K, value V) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.byDigest == nil || len(k.byDigest) >= maxKnown {
		k.byDigest = map[K]V{}
	}
	k.byDigest[digest] = value
}

func (k *known[K, V]) forget(digest K) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.byDigest, digest)
}
