package notify

import "context"

// For tests.
var (
	Sign = sign
	Key  = key
)

func (n *Notifier) Check(ctx context.Context) error { return n.check(ctx) }

func (n *Notifier) Outstanding() int { return len(n.out) }
