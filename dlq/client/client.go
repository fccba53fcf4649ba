package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"

	"github.com/redrive-go/redrive/dlq/wire"
)

// Config configures a [Client].
type Config struct {
	// Server is the URL of the server, with its prefix if it has one: https://ops.example/dlq. Required.
	Server string
	// Token is a bearer token. User and Password are sent without one. Empty ones send no credentials.
	Token, User, Password string
	// HTTP sends the requests. Defaults to a client that follows no redirects; it should have no timeout, because
	// exports and runs take long.
	HTTP *http.Client
	// Tries is how often a request that is safe to repeat is sent. Defaults to 3; 1 sends everything once.
	Tries int
}

// Client makes requests to a server. It is safe for concurrent use.
type Client struct {
	cfg    Config
	base   string
	strict bool // unknown fields in a response are an error: for tests
}

// New makes a Client. It makes no request yet.
func New(cfg Config) (*Client, error) {
	u, err := url.Parse(cfg.Server)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, errors.New("dlq/client: Server: a URL such as https://ops.example")
	case u.User != nil:
		return nil, errors.New("dlq/client: Server: no user or password in it: set Token, or User and Password")
	}
	if cfg.HTTP == nil {
		cfg.HTTP = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	cfg.Tries = cmp.Or(cfg.Tries, 3)
	return &Client{cfg: cfg, base: strings.TrimSuffix(cfg.Server, "/") + "/api/v1"}, nil
}

// By is the author, and the conditions, of a change.
type By struct {
	// Note is the reason, for the audit log.
	Note string
	// Version, unless 0, is the version that the caller saw: the change is refused if it is not the latest.
	Version int64
	// Key is the Idempotency-Key. Defaults to a new one for each call.
	Key string
	// Actor is the caller's name for a server without authentication. Other servers ignore it.
	Actor string
}

// request is a request that may be sent more than once.
type request struct {
	method, path string
	query        url.Values
	by           *By // for a change
	body         any
	content      io.Reader // instead of body: sent once
	contentType  string
	version      int64  // If-None-Match
	answer       string // its content type, unless that is JSON
}

func get(query url.Values, path ...string) request {
	return request{method: http.MethodGet, path: join(path...), query: query}
}

func post(by By, body any, path ...string) request {
	return request{method: http.MethodPost, path: join(path...), by: &by, body: body}
}

// preview is a POST that changes nothing.
func preview(body any, path ...string) request {
	return request{method: http.MethodPost, path: join(path...), body: body}
}

func join(elements ...string) string {
	var path strings.Builder
	for _, element := range elements {
		path.WriteString("/" + url.PathEscape(element))
	}
	return path.String()
}

const (
	// maxResponse is the maximum size of a response.
	maxResponse = 1 << 30
	// retryTime is the time after which a request is not retried.
	retryTime = 10 * time.Second
)

// send sends a request, repeatedly if that is safe and the server does not respond. The caller closes the body.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	var body []byte
	if r.body != nil {
		var err error
		if body, err = json.Marshal(r.body); err != nil {
			return nil, fmt.Errorf("dlq/client: %w", err)
		}
	}
	repeatable := r.content == nil && (r.method == http.MethodGet || r.by != nil && r.method == http.MethodPost)
	key := ""
	if r.by != nil && repeatable {
		key = cmp.Or(r.by.Key, uuid.NewString())
	}
	tries := uint(max(c.cfg.Tries, 1))
	if !repeatable {
		tries = 1
	}
	return backoff.Retry(ctx, func() (*http.Response, error) {
		sent, err := c.make(ctx, &r, body, key)
		if err != nil {
			return nil, backoff.Permanent(err)
		}
		response, err := c.cfg.HTTP.Do(sent)
		if err != nil {
			return nil, unreachable(err)
		}
		switch status := response.StatusCode; {
		case status == http.StatusNotModified:
		case status >= http.StatusMultipleChoices:
			return nil, refused(response, r.method == http.MethodGet)
		case contentType(response) != cmp.Or(r.answer, "application/json"): // a proxy's login page, for example
			_ = response.Body.Close() // nothing of it is used
			return nil, backoff.Permanent(errForeign)
		}
		return response, nil
	}, backoff.WithMaxTries(tries), backoff.WithMaxElapsedTime(retryTime))
}

var errForeign = errors.New("dlq/client: the response is not one of the API: is the URL that of a redrive server?")

// contentType is that of a response, without parameters.
func contentType(response *http.Response) string {
	kind, _, _ := strings.Cut(response.Header.Get("Content-Type"), ";")
	return kind
}

func (c *Client) make(ctx context.Context, r *request, body []byte, key string) (*http.Request, error) {
	address := c.base + r.path
	if query := r.query.Encode(); query != "" {
		address += "?" + query
	}
	content := r.content
	if content == nil && body != nil {
		content = bytes.NewReader(body)
	}
	sent, err := http.NewRequestWithContext(ctx, r.method, address, content)
	if err != nil {
		return nil, fmt.Errorf("dlq/client: %w", err)
	}
	switch header := sent.Header; {
	case r.contentType != "":
		header.Set("Content-Type", r.contentType)
	case body != nil:
		header.Set("Content-Type", "application/json")
	}
	switch {
	case c.cfg.Token != "":
		sent.Header.Set("Authorization", "Bearer "+c.cfg.Token)
	case c.cfg.User != "":
		sent.SetBasicAuth(c.cfg.User, c.cfg.Password)
	}
	if key != "" {
		sent.Header.Set("Idempotency-Key", key)
	}
	if r.by != nil && r.by.Actor != "" {
		sent.Header.Set("X-Redrive-Actor", r.by.Actor)
	}
	if r.by != nil && r.by.Version != 0 {
		sent.Header.Set("If-Match", wire.ETag(r.by.Version))
	}
	if r.version != 0 {
		sent.Header.Set("If-None-Match", wire.ETag(r.version))
	}
	return sent, nil
}

// ask sends a request and reads the response.
func ask[T any](ctx context.Context, c *Client, r request) (*T, error) {
	response, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }() // it was read
	if response.StatusCode == http.StatusNotModified {
		return nil, nil //nolint:nilnil // the caller has the latest version
	}
	into := new(T)
	if err := c.decode(io.LimitReader(response.Body, maxResponse), into); err != nil {
		return nil, fmt.Errorf("%w %w", errForeign, err)
	}
	return into, nil
}

func (c *Client) decode(from io.Reader, into any) error {
	decoder := json.NewDecoder(from)
	if c.strict {
		decoder.DisallowUnknownFields()
	}
	return decoder.Decode(into)
}

// Error is a response that is not a success.
type Error struct {
	// Status is the HTTP status.
	Status int
	// Problem is the server's error. It is empty if the response is not from a redrive server, but from a proxy, for
	// example.
	Problem wire.Problem

	wait *backoff.RetryAfterError // the time of the next try, if there may be one
}

// Error is the server's error, or the status.
func (e *Error) Error() string {
	switch {
	case e.Problem.Detail != "":
		return e.Problem.Detail
	case e.Status == http.StatusNotFound:
		return "the server answered 404: is the URL that of a redrive server?"
	}
	return fmt.Sprintf("the server answered %d %s", e.Status, http.StatusText(e.Status))
}

// Unwrap returns the time to wait, by which package backoff finds it.
func (e *Error) Unwrap() error {
	if e.wait == nil {
		return nil
	}
	return e.wait
}

// Ours reports whether the response is from a redrive server.
func (e *Error) Ours() bool { return e.Problem.Status != 0 }

// UnreachableError means that the server did not respond.
type UnreachableError struct{ Err error }

// Error omits the URL: the caller knows it.
func (u *UnreachableError) Error() string { return "the server does not answer: " + u.Err.Error() }

// Unwrap is the cause.
func (u *UnreachableError) Unwrap() error { return u.Err }

func unreachable(err error) error {
	if errors.Is(err, context.Canceled) {
		return backoff.Permanent(context.Canceled)
	}
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}
	return &UnreachableError{err}
}

// refused reads a response that is not a success. The request is retried if that may help and the server has changed
// nothing.
func refused(response *http.Response, reads bool) error {
	defer func() { _ = response.Body.Close() }() // the reason was read
	e := &Error{Status: response.StatusCode}
	if contentType(response) == "application/problem+json" {
		if err := json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(&e.Problem); err != nil {
			e.Problem = wire.Problem{}
		}
	}
	wait, err := strconv.Atoi(response.Header.Get("Retry-After"))
	again := err == nil && (reads || e.Status == http.StatusTooManyRequests || e.Status == http.StatusConflict)
	switch {
	case again:
		e.wait = &backoff.RetryAfterError{Duration: time.Duration(wait) * time.Second}
		return e
	case reads && e.Status == http.StatusBadGateway:
		return e
	default:
		return backoff.Permanent(e)
	}
}

// values encodes structs as the parameters of a query, without zero values.
func values(structs ...any) url.Values {
	q := url.Values{}
	for _, s := range structs {
		add(q, reflect.ValueOf(s))
	}
	return q
}

func add(q url.Values, v reflect.Value) {
	for i := range v.NumField() {
		declared := v.Type().Field(i)
		name, _, _ := strings.Cut(cmp.Or(declared.Tag.Get("query"), declared.Tag.Get("json")), ",")
		switch field := v.Field(i); {
		case declared.Anonymous:
			add(q, field)
		case field.IsZero() || name == "":
		case name == "payload_fields": // a value may have a comma in it
			q[name] = texts(field)
		case field.Kind() == reflect.Slice:
			q.Set(name, strings.Join(texts(field), ","))
		default:
			q.Set(name, text(field))
		}
	}
}

func texts(list reflect.Value) []string {
	all := make([]string, list.Len())
	for i := range all {
		all[i] = text(list.Index(i))
	}
	return all
}

func text(v reflect.Value) string {
	if t, ok := reflect.TypeAssert[time.Time](v); ok {
		return t.Format(time.RFC3339Nano)
	}
	return fmt.Sprint(reflect.Indirect(v).Interface())
}
