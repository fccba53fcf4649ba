package wire

// Me is the caller, and what the server allows it.
type Me struct {
	Name     string `json:"name" doc:"The name in the audit log."`
	Role     string `json:"role" enum:"viewer,operator,approver,admin"`
	ReadOnly bool   `json:"read_only" doc:"The server rejects every change."`
	Redacted bool   `json:"redacted" doc:"Some values are hidden from the caller."`

	RedriveRate float64 `json:"redrive_rate,omitempty" doc:"Messages a second of a run for which no rate is given; 0 means no limit."`
}

// Rule redrives dead letters with technical causes automatically.
type Rule struct {
	Name            string  `json:"name"`
	Reason          string  `json:"reason,omitempty"`
	ErrorClass      string  `json:"error_class,omitempty"`
	ErrorCode       string  `json:"error_code,omitempty"`
	Fingerprint     string  `json:"fingerprint,omitempty"`
	Handler         string  `json:"handler,omitempty"`
	Topic           string  `json:"topic,omitempty"`
	Cause           string  `json:"cause,omitempty"`
	AfterSeconds    float64 `json:"after_seconds" doc:"How long after its last death an entry is redriven; doubled with each redrive."`
	MaxAfterSeconds float64 `json:"max_after_seconds"`
	Redrives        int     `json:"redrives" doc:"Maximum number of redrives."`
	Rate            float64 `json:"rate" doc:"Maximum number of messages per second."`
	CloseOnPublish  bool    `json:"close_on_publish,omitempty"`
}

// RuleList are the rules that the server applies.
type RuleList struct {
	Rules []Rule `json:"rules" nullable:"false"`
}

// Retention is how long closed entries are kept, and what a purge would remove now.
type Retention struct {
	ResolvedSeconds  int64 `json:"resolved_seconds" doc:"How long RESOLVED entries are kept; 0 means forever."`
	DiscardedSeconds int64 `json:"discarded_seconds" doc:"How long DISCARDED entries are kept; 0 means forever."`
	SkipArchive      bool  `json:"skip_archive" doc:"Remove without a copy to the archive."`
	ResolvedDue      int64 `json:"resolved_due" doc:"RESOLVED entries older than that."`
	DiscardedDue     int64 `json:"discarded_due" doc:"DISCARDED entries older than that."`
}

// Health is the state of the program and of each of its components.
type Health struct {
	// Status is [StatusOK] or [StatusFailing]; failing when any component is.
	Status string `json:"status" enum:"ok,failing"`
	// Components are what the program needs, by name: store, "broker orders", "source orders/orders_dlq".
	Components map[string]Component `json:"components"`
}

// Component is the state of a component that the program needs.
type Component struct {
	Status string `json:"status" enum:"ok,failing"`
	// Error is what is wrong. It must not show a password.
	Error string `json:"error,omitempty"`
	// Collected and Held are a source's messages: stored since the start, and read but not stored yet.
	Collected int64 `json:"collected,omitempty"`
	Held      int64 `json:"held,omitempty"`
}

// The states of a program and of a component.
const (
	StatusOK      = "ok"
	StatusFailing = "failing"
)

// Add records the state of a component: failing if err is not nil. Not safe for concurrent use.
func (h *Health) Add(name string, err error, c Component) {
	if h.Components == nil {
		h.Components = map[string]Component{}
	}
	if h.Status == "" {
		h.Status = StatusOK
	}
	c.Status = StatusOK
	if err != nil {
		c.Status, c.Error, h.Status = StatusFailing, err.Error(), StatusFailing
	}
	h.Components[name] = c
}
