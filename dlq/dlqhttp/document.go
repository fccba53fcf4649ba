package dlqhttp

import "fmt"

// OpenAPI is the API's OpenAPI 3.1 document, as YAML. It is served at /api/v1/openapi.yaml, and openapi.yaml in this
// package's directory is a copy of it.
func (h *Handler) OpenAPI() ([]byte, error) {
	text, err := h.api.Document().YAML()
	if err != nil {
		return nil, fmt.Errorf("dlqhttp: document: %w", err)
	}
	return text, nil
}
