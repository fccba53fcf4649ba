package dlq

import "time"

// WithAdoption sets how often the spools of processes that are gone are looked for.
func WithAdoption(d time.Duration) Option { return func(o *options) { o.adoptEvery = d } }
