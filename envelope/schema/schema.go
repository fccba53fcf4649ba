// Package schema holds the JSON Schema (draft 2020-12) of a structured envelope body, for producers in other languages,
// for schema registries and for validation at an edge. It imports no validator: choose your own.
//
// The schema describes what a well-formed producer writes. Package envelope accepts more: error or metadata may be
// missing, and an invalid retry count leads to one run without retries instead of a rejection.
package schema

import _ "embed"

// ID is the $id of the schema.
const ID = "https://github.com/redrive-go/redrive/envelope/schema/envelope-1.0.json"

//go:embed envelope-1.0.json
var envelope10 string

// Envelope returns the schema of layout version 1 as JSON text.
func Envelope() string { return envelope10 }
