package brokers

import "context"

// Driver opens brokers of one kind. Its package registers it under its URL schemes with [Register].
type Driver interface {
	// Open connects to the broker. cfg is resolved: URL holds the backend's own URI without our parameters, every value is
	// checked against Params, and every default is filled in. An error must not contain a password: drivers pass on errors
	// of url parsing without their text.
	Open(ctx context.Context, cfg Config) (Broker, error)

	// Params declares the parameters that the driver adds to the common ones. It returns the same slice content at every
	// call.
	Params() []Param
}

// ValueType is the type of a parameter's value.
type ValueType int

// The kinds of values. Each is parsed strictly: no surrounding space, no unit guessed, nothing out of range.
const (
	String       ValueType = iota // any text
	Int                           // decimal integer, not negative
	Bool                          // true or false
	Duration                      // Go duration such as 250ms or 1h30m, not negative
	Size                          // bytes: a decimal integer, or one with the suffix KiB, MiB or GiB
	DurationList                  // durations separated by commas, such as 10s,20s,40s
	StringList                    // texts separated by commas
)

// Param declares one parameter of a driver. It is written x-<Name> in the URL, or <Name> if that cannot be mistaken for
// one of the backend's own, and <Name> under params in a [Config].
type Param struct {
	// Name without the x-. Required.
	Name string
	// Type of the value. Defaults to String.
	Type ValueType
	// Default value in the syntax of Kind. Empty lets the driver detect that the parameter was not given.
	Default string
	// Doc is one sentence for people; it appears in listings.
	Doc string
	// OneOf lists the values allowed. Empty means all that Kind allows.
	OneOf []string
	// Min and Max bound an Int, a Duration (in nanoseconds) or a Size (in bytes). Max 0 means no bound.
	Min, Max int64
	// Secret keeps the value out of errors and logs. The name must also show that it is secret, by containing password,
	// secret, token or credential, for code that sees only the URL.
	Secret bool
	// Native marks a parameter of the backend's own URI: it stays in the URL, is written without x-, and is not parsed
	// here. The Name "*" stands for every parameter; then ours need their x-, so that neither shadows the other.
	//
	// Without Native, the Name "*" stands for the parameters of other drivers: those of a [Config] are left out instead of
	// refused. This is for a driver that replaces others in tests.
	Native bool
}
