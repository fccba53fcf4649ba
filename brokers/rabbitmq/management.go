package rabbitmq

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	amqp "github.com/rabbitmq/amqp091-go"
)

// management queries RabbitMQ's management API for what AMQP does not show, as the user of the AMQP URL.
type management struct {
	base   *url.URL
	broker amqp.URI
}

// newManagement checks rawURL, which must not repeat a password: it would not be redacted there.
func newManagement(rawURL, brokerURL string) (*management, error) {
	base, err := url.Parse(rawURL)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return nil, errors.New("management: want the address of the management API, such as http://localhost:15672")
	}
	if base.User != nil {
		return nil, errors.New("management: leave user and password out, those of the broker's URL are used")
	}
	uri, err := amqp.ParseURI(brokerURL)
	if err != nil {
		return nil, errors.New("management: the broker's URL cannot be read")
	}
	return &management{base: base, broker: uri}, nil
}

// bindings lists the bindings of an exchange; none if it does not exist.
func (m *management) bindings(ctx context.Context, exchange string) ([]Binding, error) {
	var answer []struct {
		Source          string `json:"source"`
		Destination     string `json:"destination"`
		DestinationType string `json:"destination_type"`
		RoutingKey      string `json:"routing_key"`
	}
	err := m.get(ctx, &answer, "exchanges", m.broker.Vhost, exchange, "bindings", "source")
	list := make([]Binding, len(answer))
	for i, b := range answer {
		list[i] = Binding{
			Exchange: b.Source, Key: b.RoutingKey, To: b.Destination,
			ToExchange: b.DestinationType == "exchange",
		}
	}
	return list, err
}

// queuePolicy is the effect of policies on a queue.
type queuePolicy struct {
	Name       string
	Definition map[string]any
}

// policy returns the policies in effect on a queue, including an operator policy.
func (m *management) policy(ctx context.Context, queue string) (queuePolicy, error) {
	var answer struct {
		Policy         string          `json:"policy"`
		OperatorPolicy string          `json:"operator_policy"`
		Effective      json.RawMessage `json:"effective_policy_definition"` // an object, or an empty list
	}
	if err := m.get(ctx, &answer, "queues", m.broker.Vhost, queue); err != nil {
		return queuePolicy{}, err
	}
	p := queuePolicy{Name: answer.Policy}
	if p.Name == "" {
		p.Name = answer.OperatorPolicy
	}
	if len(answer.Effective) > 0 && answer.Effective[0] == '{' {
		if err := json.Unmarshal(answer.Effective, &p.Definition); err != nil {
			return queuePolicy{}, fmt.Errorf("ask the management API: %w", err)
		}
		for key, value := range p.Definition {
			if number, ok := value.(float64); ok { // as JSON decodes it; all of a policy's are integers
				p.Definition[key] = int64(number)
			}
		}
	}
	return p, nil
}

// get decodes an answer into out, and leaves out unchanged if there is no such object.
func (m *management) get(ctx context.Context, out any, path ...string) error {
	target := m.base.JoinPath("api")
	for _, segment := range path {
		target = target.JoinPath(url.PathEscape(segment))
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return err
	}
	request.SetBasicAuth(m.broker.Username, m.broker.Password)
	client, err := m.client()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("ask the management API: %w", err)
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
		return json.NewDecoder(response.Body).Decode(out)
	case http.StatusNotFound:
		return nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("the management API at %s answers %s: give the user the tag management (rabbitmqctl set_user_tags)",
			m.base.Host, response.Status)
	}
	text, _ := io.ReadAll(io.LimitReader(response.Body, 200)) // the status is enough
	return fmt.Errorf("the management API at %s answers %s: %s", m.base.Host, response.Status, text)
}

// client trusts the authority that the broker's URL names.
func (m *management) client() (*http.Client, error) {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment}
	if m.broker.CACertFile != "" && m.base.Scheme == "https" {
		roots, err := rootsIn(m.broker.CACertFile)
		if err != nil {
			return nil, err
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: transport}, nil
}
