package dlqhttp

import "fmt"

// OpenAPI is the API's OpenAPI 3.1 document, as YAML. It is served at /api/v1/openapi.yaml, and openapi.yaml in this package's directory is
// a copy of it.
func (h *Handler) OpenAPI() ([]byte, error) {
	text, err := h.api.Document().YAML()
	if err != nil {
		return nil, fmt.Errorf("dlqhttp: document: %w", err)
	}
	return text, nil
}

// OpenAPI30 is the document in OpenAPI 3.0, as YAML, for tools that do not read 3.1: the generator of dlqclient is one.
func (h *Handler) OpenAPI30() ([]byte, error) {
	text, err := h.api.Document().DowngradeYAML()
	if err != nil {
		return nil, fmt.Errorf("dlqhttp: document: %w", err)
	}
	return text, nil
}
