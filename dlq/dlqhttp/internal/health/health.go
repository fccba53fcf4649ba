// Package health is the state of the program, as /readyz, the API and the dashboard show it.
package health

// Health is the state of the program and of each of its components.
type Health struct {
	// Status is [StatusOK] or [StatusFailing]; failing when any component is.
	Status string `json:"status" enum:"ok,failing"`
	// Components are what the program needs, by name: store, "broker orders", "source orders/orders_dlq".
	Components map[string]Component `json:"components"`
}

// Component is the state of one thing that the program needs.
type Component struct {
	Status string `json:"status" enum:"ok,failing"`
	// Error says what is wrong. It must not show a password.
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

// Add notes the state of a component: failing when err is not nil. Not safe for concurrent use.
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
