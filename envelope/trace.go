package envelope

import (
	"encoding/hex"
	"strings"
)

// TraceID returns the trace id from traceparent in a message's headers, 32 hex digits, or "" without one.
func TraceID(headers map[string]string) string {
	parts := strings.Split(headers[KeyTraceParent], "-")
	if len(parts) < 4 || len(parts[0]) != 2 || len(parts[1]) != 32 || strings.Trim(parts[1], "0") == "" {
		return ""
	}
	if _, err := hex.DecodeString(parts[1]); err != nil {
		return ""
	}
	return strings.ToLower(parts[1])
}
