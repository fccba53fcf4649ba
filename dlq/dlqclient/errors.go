package dlqclient

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Error is an answer that is not a success.
type Error struct {
	// Status is the HTTP status.
	Status int
	// Problem is what the server says of it. Its fields are nil where the answer was no problem, of a proxy for example.
	Problem Problem
}

// Error is what the server says, or the status.
func (e *Error) Error() string {
	if e.Problem.Detail != nil && *e.Problem.Detail != "" {
		return *e.Problem.Detail
	}
	return fmt.Sprintf("the server answered %d %s", e.Status, http.StatusText(e.Status))
}

// ErrorOf is the error of an answer, nil when it is a success.
func ErrorOf(r *http.Response, body []byte) error {
	if r.StatusCode < http.StatusBadRequest {
		return nil
	}
	e := &Error{Status: r.StatusCode}
	if kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); kind == "application/problem+json" {
		if err := json.Unmarshal(body, &e.Problem); err != nil {
			e.Problem = Problem{}
		}
	}
	return e
}

// WithToken sends a bearer token with every request. An empty one sends none.
func WithToken(token string) ClientOption {
	return WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		return nil
	})
}

// WithPassword sends a user name and password with every request.
func WithPassword(user, password string) ClientOption {
	return WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
		r.SetBasicAuth(user, password)
		return nil
	})
}

// WithActor says who somebody is to a server that asks for no credentials; others do not believe it.
func WithActor(name string) ClientOption {
	return WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
		r.Header.Set("X-Redrive-Actor", name)
		return nil
	})
}
