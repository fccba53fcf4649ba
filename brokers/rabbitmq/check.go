package rabbitmq

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
)

// PlanConfig plans what the consumers of topics need under cfg, without a connection. cfg.Group, if set, is their
// group. It returns the errors of cfg.
func PlanConfig(cfg brokers.Config, topics ...string) (Plan, error) {
	resolved, err := cfg.Resolve(Driver{}.Params())
	if err != nil {
		return Plan{}, err
	}
	d, err := newDesign(resolved)
	if err != nil {
		return Plan{}, fmt.Errorf("rabbitmq: %w", err)
	}
	return d.plan(resolved.Group, topics), nil
}

// Plan plans what the consumers of topics need, in the broker's own group.
func (b *Broker) Plan(topics ...string) Plan {
	return b.transport.design.plan(b.Config().Group, topics)
}

// PlanDelayed plans the queues in which messages to topics wait for their first delivery. The first delayed publish to
// a topic declares them, once per process: Apply the plan beforehand if producers may not declare, or if you worry
// about a broker that is killed within seconds of that first publish (see How delay works).
func (b *Broker) PlanDelayed(topics ...string) Plan {
	var p Plan
	for _, topic := range topics {
		p.merge(b.transport.design.first(topic))
	}
	return p
}

// Apply declares p. Declaring an object that exists as planned changes nothing; one that differs ends it with an
// *ArgumentError. Nothing is ever deleted or changed.
func (b *Broker) Apply(ctx context.Context, p Plan) error {
	return declare(ctx, b.transport.asking, p)
}

// Finding is one difference between a plan and the broker.
type Finding struct {
	Kind string // queue, exchange or binding
	Name string
	// Missing means that there is no such object.
	Missing bool
	// Fault is how an existing object differs, such as an *[ArgumentError], or why it cannot be used as it is, such as a
	// *[NoWayBackError].
	Fault error
}

// String describes the finding.
func (f Finding) String() string {
	if f.Missing {
		return fmt.Sprintf("%s %q is missing", f.Kind, f.Name)
	}
	return f.Fault.Error()
}

// ChecksBindings reports whether Check compares bindings and policies.
func (b *Broker) ChecksBindings() bool { return b.transport.design.management != nil }

// Check compares p with the broker and changes nothing. AMQP reports one difference per queue or exchange, the first.
// Arguments of a queue that lose messages are all reported, if the user may declare it.
//
// AMQP does not show bindings and policies. They are only compared if the URL names the management API (x-management):
// see [Broker.ChecksBindings]. Bindings that are not in p are no difference. A policy on one of our queues is one if it
// makes the queue lose or misroute messages. Queues that are declared when first needed may be missing, but must not
// differ.
func (b *Broker) Check(ctx context.Context, p Plan) ([]Finding, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, declareTimeout, fmt.Errorf("no answer within %s", declareTimeout))
	defer cancel()
	d := &declarer{link: b.transport.asking}
	defer d.close(ctx)

	var findings []Finding
	for _, e := range p.Exchanges {
		_, err := p.compareExchange(ctx, d, e)
		if findings, err = withFinding(findings, "exchange", e.Name, err); err != nil {
			return nil, err
		}
	}
	needed := slices.Concat(p.adopted(), p.Queues)
	for i, q := range slices.Concat(needed, p.Later) {
		_, fault := p.compareQueue(ctx, d, q) // one that exists is compared, and nothing is created
		if i >= len(needed) && isNotFound(fault) {
			continue
		}
		var err error
		if findings, err = withFinding(findings, "queue", q.Name, fault); err != nil {
			return nil, err
		}
		if isNotFound(fault) {
			continue
		}
		args, err := b.transport.design.look(ctx, d, q)
		_, harms, unseen := b.transport.design.withPolicies(ctx, q, args)
		if unseen != nil || err != nil && !isRefused(err) {
			return nil, fmt.Errorf("rabbitmq: check queue %q: %w", q.Name, errors.Join(err, unseen))
		}
		for _, harm := range harms {
			findings = append(findings, Finding{Kind: "queue", Name: q.Name, Fault: harm})
		}
	}
	if !b.ChecksBindings() {
		return findings, nil
	}
	missing, err := b.missingBindings(ctx, p)
	return slices.Concat(findings, missing), err
}

// withFinding adds what the error of looking at an object says about it. Errors unrelated to the object are returned.
func withFinding(findings []Finding, kind, name string, err error) ([]Finding, error) {
	var different *ArgumentError
	var stays *NoWayBackError
	switch {
	case err == nil:
		return findings, nil
	case isNotFound(err):
		return append(findings, Finding{Kind: kind, Name: name, Missing: true}), nil
	case errors.As(err, &different):
		return append(findings, Finding{Kind: kind, Name: name, Fault: different}), nil
	case errors.As(err, &stays):
		return append(findings, Finding{Kind: kind, Name: name, Fault: stays}), nil
	}
	return nil, fmt.Errorf("rabbitmq: check %s %q: %w", kind, name, err)
}

func (b *Broker) missingBindings(ctx context.Context, p Plan) ([]Finding, error) {
	var findings []Finding
	there := map[string][]Binding{} // by exchange
	for _, want := range p.Bindings {
		if _, asked := there[want.Exchange]; !asked {
			have, err := b.transport.design.management.bindings(ctx, want.Exchange)
			if err != nil {
				return nil, fmt.Errorf("rabbitmq: check the bindings of exchange %q: %w", want.Exchange, err)
			}
			there[want.Exchange] = have
		}
		if !slices.Contains(there[want.Exchange], want) {
			findings = append(findings, Finding{Kind: "binding", Name: want.String(), Missing: true})
		}
	}
	return findings, nil
}

// harms returns what is harmful about the arguments of an existing queue, nil if they cannot be seen, and about a
// policy on it. Both are compared with those of the planned queue q, if it has any.
func harms(q Queue, args amqp.Table, policy queuePolicy) (list []error) {
	full := policy.over(args)
	if args == nil && q.Args == nil { // they may dead-letter
		full["x-dead-letter-exchange"] = cmp.Or(full["x-dead-letter-exchange"], any(unseen))
	}
	for _, key := range slices.Sorted(maps.Keys(full)) {
		of, by, remedy := Queue{}, "it was declared with "+key, "delete it when it is empty, and declare it without"
		value, planned := fmt.Sprint(full[key]), fmt.Sprint(cmp.Or(q.Args[key], any("none"))) // a list is not comparable
		switch own, has := args[key]; {
		case has && fmt.Sprint(own) == planned && planned == value:
			continue
		case !has || fmt.Sprint(own) != value:
			of, by = q, fmt.Sprintf("policy %q sets %s", policy.Name, strings.TrimPrefix(key, "x-"))
			remedy = "change the policy's pattern, or give these queues one with a higher priority"
		}
		if harmful(of, key, full) {
			list = append(list, fmt.Errorf("queue %q: %s=%s, which can lose messages, or send them elsewhere or too early; "+
				"want %s: %s", q.Name, by, value, planned, remedy))
		}
	}
	return list
}

// harmful reports whether the argument key in args, those of a queue and its policies, loses or misroutes messages. A
// queue q without arguments is used as it is, and may need what a planned one must not have.
func harmful(q Queue, key string, args amqp.Table) bool {
	limit, _ := integer(args[key])
	most, ours := integer(q.Args[key])
	lower := q.Args != nil && (!ours || limit < most)
	switch key {
	case "x-expires":
		return mayExpire(args)
	case "x-queue-type": // what a stream gets while its consumer is not connected is never delivered
		return args[key] == "stream"
	case "x-max-length", "x-max-length-bytes": // drops the oldest messages, or refuses those that come back
		return true
	case "x-message-ttl":
		return lower || q.Args == nil && args["x-dead-letter-exchange"] == nil
	case "x-delivery-limit": // one is too low to publish a message again before it is given up
		return lower || limit == 0 || limit == 1
	case "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy", "x-overflow":
		return q.Args != nil && args[key] != q.Args[key]
	}
	return false
}

// management queries RabbitMQ's management API for what AMQP does not show, as the user of the AMQP URL.
type management struct {
	base   *url.URL
	broker amqp.URI
	logger *slog.Logger

	seen    sync.Map     // the last answers of lastPolicy, by queue
	silent  atomic.Int64 // when it last had none, in nanoseconds since 1970
	why     atomic.Value // it had none then, an error
	warning sync.Once
}

// newManagement checks rawURL, which must not repeat a password: it would not be redacted there.
func newManagement(rawURL string, cfg *brokers.Config) (*management, error) {
	base, err := url.Parse(rawURL)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return nil, errors.New("management: want the address of the management API, such as http://localhost:15672")
	}
	if base.User != nil {
		return nil, errors.New("management: leave user and password out, those of the broker's URL are used")
	}
	uri, err := amqp.ParseURI(cfg.URL)
	if err != nil {
		return nil, errors.New("management: the broker's URL cannot be read")
	}
	return &management{base: base, broker: uri, logger: cfg.Logger}, nil
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

// over returns args and what p adds to them. Of two limits the lower one applies, otherwise the queue's argument.
func (p *queuePolicy) over(args amqp.Table) amqp.Table {
	full := amqp.Table{}
	maps.Copy(full, args)
	for key, value := range p.Definition {
		have, has := args["x-"+key]
		number, isLimit := value.(json.Number)
		limit, _ := integer(number)
		most, _ := integer(have)
		if !has || isLimit && uint64(limit) < uint64(most) { //nolint:gosec // G115: a negative one is no limit
			full["x-"+key] = value
		}
	}
	return full
}

// policyTimeout leaves time for the broker itself within declareTimeout if the management API does not answer.
const policyTimeout = 3 * time.Second

// lastPolicy returns the policies in effect on a queue, including an operator policy, and with an error those that were
// seen before: consumers work without the API. After a failure it makes no request for a while, because a consumer may
// have twenty queues.
func (m *management) lastPolicy(ctx context.Context, queue string) (policy queuePolicy, err error) {
	err, _ = m.why.Load().(error)
	if time.Since(time.Unix(0, m.silent.Load())) > checkEvery/2 {
		asking, cancel := context.WithTimeout(ctx, policyTimeout)
		defer cancel()
		var answer struct {
			Policy         string `json:"policy"`
			OperatorPolicy string `json:"operator_policy"`
			Effective      any    `json:"effective_policy_definition"` // an object, or an empty list
		}
		if err = m.get(asking, &answer, "queues", m.broker.Vhost, queue); err == nil {
			policy.Name = cmp.Or(answer.Policy, answer.OperatorPolicy)
			policy.Definition, _ = answer.Effective.(map[string]any)
			m.seen.Store(queue, policy)
			return policy, nil
		}
		err = fmt.Errorf("rabbitmq: look at the policies of queue %q: %w", queue, err)
		if ctx.Err() == nil {
			m.why.Store(err)
			m.silent.Store(time.Now().UnixNano())
			m.warning.Do(func() {
				m.logger.Warn("rabbitmq: consumers start without knowing the delivery limits and times to live that policies set",
					"error", err)
			})
		}
	}
	seen, _ := m.seen.Load(queue)
	policy, _ = seen.(queuePolicy)
	return policy, err
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
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if trust.RootCAs, err = rootsOf(&m.broker); err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: trust}}
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("ask the management API: %w", err)
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
		decoder := json.NewDecoder(response.Body)
		decoder.UseNumber()
		return decoder.Decode(out)
	case http.StatusNotFound:
		return nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("the management API at %s answers %s: give the user the tag management (rabbitmqctl set_user_tags)",
			m.base.Host, response.Status)
	}
	text, _ := io.ReadAll(io.LimitReader(response.Body, 200)) // the status is enough
	return fmt.Errorf("the management API at %s answers %s: %s", m.base.Host, response.Status, text)
}
