// Package problem writes errors as application/problem+json (RFC 9457) where no route of the API answers.
package problem

import (
	"encoding/json"
	"net/http"

	"github.com/redrive-go/redrive/dlq/wire"
)

// ContentType of a problem.
const ContentType = "application/problem+json"

// Write responds with a problem. Nothing may have been written before.
func Write(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", ContentType)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	// the client disconnected: no reader is left for the error
	_ = json.NewEncoder(w).Encode(wire.Problem{Title: http.StatusText(status), Status: status, Detail: detail})
}
