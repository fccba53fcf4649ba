package services

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/redrive-go/redrive/integration/await"
)

// Management calls RabbitMQ's management API.
type Management struct {
	base *url.URL
	http *http.Client
}

// Queue is a queue in the management API; the counts are up to a second old.
type Queue struct {
	Name      string         `json:"name"`
	VHost     string         `json:"vhost"`
	Type      string         `json:"type"`
	Durable   bool           `json:"durable"`
	Arguments map[string]any `json:"arguments"`
	Messages  int            `json:"messages"`
	Ready     int            `json:"messages_ready"`
	Unacked   int            `json:"messages_unacknowledged"`
	Consumers int            `json:"consumers"`
}

// Management returns a client of the broker's management API. It panics if the environment names a broker but no
// management API.
func (r *Rabbit) Management() *Management {
	base, err := url.Parse(r.ManagementURL)
	if err != nil || base.Host == "" {
		panic("services: TEST_AMQP_URL is set, and this test needs TEST_AMQP_MANAGEMENT_URL as well")
	}
	// An idle connection would have goroutines, which tests for leaked goroutines would find.
	once := &http.Transport{DisableKeepAlives: true}
	return &Management{base: base, http: &http.Client{Timeout: await.Patience, Transport: once}}
}

// Address is the API's address without user and password.
func (m *Management) Address() string {
	u := *m.base
	u.User = nil
	return u.String()
}

// Queues lists the queues of a virtual host.
func (m *Management) Queues(ctx context.Context, vhost string) ([]Queue, error) {
	return get[[]Queue](ctx, m, "queues", vhost)
}

// Queue returns one queue.
func (m *Management) Queue(ctx context.Context, vhost, name string) (Queue, error) {
	return get[Queue](ctx, m, "queues", vhost, name)
}

// AddVHost creates a virtual host that the guest user may use.
func (m *Management) AddVHost(ctx context.Context, name string) error {
	if err := m.Do(ctx, http.MethodPut, struct{}{}, nil, "vhosts", name); err != nil {
		return err
	}
	all := map[string]string{"configure": ".*", "write": ".*", "read": ".*"}
	return m.Do(ctx, http.MethodPut, all, nil, "permissions", name, m.base.User.Username())
}

// SetPolicy applies a policy to the queues whose names match the pattern.
func (m *Management) SetPolicy(ctx context.Context, vhost, name, pattern string, definition map[string]any) error {
	policy := map[string]any{"pattern": pattern, "definition": definition, "apply-to": "queues"}
	return m.Do(ctx, http.MethodPut, policy, nil, "policies", vhost, name)
}

func get[T any](ctx context.Context, m *Management, segments ...string) (out T, err error) {
	err = m.Do(ctx, http.MethodGet, nil, &out, segments...)
	return out, err
}

// Do sends one request to /api/ and the path's segments, which it escapes, and decodes the response into out unless out
// is nil.
func (m *Management) Do(ctx context.Context, method string, in, out any, segments ...string) error {
	path := []string{"api"}
	for _, s := range segments {
		path = append(path, url.PathEscape(s)) // a virtual host may be called "/"
	}
	encoded, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, m.base.JoinPath(path...).String(), bytes.NewReader(encoded))
	if err != nil {
		return err
	}
	resp, err := m.http.Do(req) // as the URL's user
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("services: rabbitmq: %s %s: %s: %s", method, strings.Join(path, "/"), resp.Status, answer)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(answer, out)
}
