package envelope

import "strconv"

// Mode is where a message carries its control data, in CloudEvents' terms.
type Mode int

const (
	// Binary leaves the payload untouched and carries control data in headers. The default.
	Binary Mode = iota
	// Structured carries everything in the payload, the JSON object of the schema.
	Structured
)

// String returns "binary" or "structured".
func (m Mode) String() string {
	switch m {
	case Binary:
		return "binary"
	case Structured:
		return "structured"
	}
	return "Mode(" + strconv.Itoa(int(m)) + ")"
}

// ContentType is the media type of a structured body. A payload with this content type must be a readable envelope;
// without it, a payload is recognized by its members, see the package documentation.
const ContentType = "application/vnd.redrive.envelope+json"

// LayoutVersion is the version of the layout that this package writes.
const LayoutVersion = "1.0"
