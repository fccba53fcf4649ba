package rest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/danielgtaylor/huma/v2"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/callers"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/operations"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/rest"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/internal/storetest"
	_ "github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// api is the REST API without a server around it. Each request carries its user and role.
type api struct {
	*rest.API
	mux *access.Mux
}

// newAPI has one dead letter, 1.
func newAPI(t *testing.T) *api {
	t.Helper()
	letters, err := dlq.Open(t.Context(), "sqlite:"+storetest.File(t), dlq.WithoutSpool(),
		dlq.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, letters.Close()) })
	_, err = letters.Store().Put(t.Context(), dlq.NewEntry(&envelope.DeadLetter{
		Message: message.NewMessage("m-1", []byte("order")), Err: envelope.Error{Message: "bank: timeout"},
		Reason: envelope.ReasonExhausted, Attempts: 4, Handler: "pay", At: time.Now(), FirstFailure: time.Now(),
		Origin: envelope.Origin{Broker: "mem", Topic: "orders", Consumer: "billing"},
	}))
	require.NoError(t, err)
	mux := &access.Mux{}
	return &api{mux: mux, API: rest.New(mux, operations.Config{
		Manager: letters.Manager(nil), Logger: slog.New(slog.DiscardHandler),
		Visible: func(context.Context) visible.View { return visible.View{} },
		Read:    func(context.Context, string, ...int64) error { return nil },
		Refused: func(context.Context, *visible.RefusedError) {}, Searches: callers.NewSlots("searches", 100, 100, 0, 0),
		Limits: operations.Limits{Body: 1 << 16, Import: 1 << 20, Streams: 1, Timeout: time.Minute},
	})}
}

// ask sends a request with pairs of header names and values.
func (a *api) ask(
	t *testing.T, who string, role access.Role, route, body string, header ...string,
) *httptest.ResponseRecorder {
	t.Helper()
	method, path, _ := strings.Cut(route, " ")
	r := httptest.NewRequestWithContext(access.WithPrincipal(t.Context(), access.Principal{Name: who, Role: role}),
		method, rest.Base+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	a.mux.ServeHTTP(w, r)
	return w
}

// problem is the answer to a refused request.
func problem(t *testing.T, w *httptest.ResponseRecorder, status int) rest.Problem {
	t.Helper()
	require.Equal(t, status, w.Code)
	require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
	var p rest.Problem
	require.NoError(t, json.NewDecoder(w.Body).Decode(&p))
	return p
}

// A second click changes nothing; a version that was read and is not the latest is refused with the name of the
// person who changed it.
func TestETag(t *testing.T) {
	a := newAPI(t)
	read := a.ask(t, "ana", access.Viewer, "GET /entries/1", "")
	tag := read.Header().Get("ETag")
	require.Equal(t, `"1"`, tag)
	for _, known := range []string{tag, `"7", ` + tag, "W/" + tag, "*"} {
		unchanged := a.ask(t, "ana", access.Viewer, "GET /entries/1", "", "If-None-Match", known)
		require.Equal(t, http.StatusNotModified, unchanged.Code, known)
		require.Equal(t, tag, unchanged.Header().Get("ETag"))
	}
	parked := a.ask(t, "bo", access.Admin, "POST /entries/1/park", `{"note":"later"}`, "If-Match", tag)
	require.Equal(t, http.StatusOK, parked.Code)
	require.Equal(t, `"2"`, parked.Header().Get("ETag"))

	late := problem(t, a.ask(t, "ana", access.Admin, "POST /entries/1/discard", "", "If-Match", tag),
		http.StatusPreconditionFailed)
	require.Equal(t, "bo", late.Conflict.By)
	require.Equal(t, "PARKED", late.Conflict.Status)
	anyway := a.ask(t, "ana", access.Admin, "POST /entries/1/discard", "", "If-Match", "*")
	require.Equal(t, http.StatusOK, anyway.Code)
	again := problem(t, a.ask(t, "ana", access.Admin, "POST /entries/1/discard", ""), http.StatusConflict)
	require.Equal(t, "ana", again.Conflict.By)
	for _, invalid := range []string{"2", `"2`, `"0"`, `"-1"`, `"two"`, `W/"2"`} {
		refused := problem(t, a.ask(t, "ana", access.Admin, "POST /entries/1/discard", "", "If-Match", invalid),
			http.StatusBadRequest)
		require.Contains(t, refused.Detail, "If-Match is an ETag", invalid)
	}
	audit := a.ask(t, "ana", access.Viewer, "GET /entries/1/audit", "")
	var list wire.AuditList
	require.NoError(t, json.NewDecoder(audit.Body).Decode(&list))
	require.Equal(t, "later", list.Records[0].Note)
}

// Text that no store can hold is refused with the field's place, before the store is called; payloads may have any
// bytes.
func TestInput_NoStoreCanHold(t *testing.T) {
	a := newAPI(t)
	for route, place := range map[string]string{
		"GET /entries?topic=a%00b":               "query.topic",
		"GET /entries?error=%ff":                 "query.error",
		"GET /entries?from=0000-01-01T00:00:00Z": "query.from",
	} {
		refused := problem(t, a.ask(t, "ana", access.Viewer, route, ""), http.StatusUnprocessableEntity)
		require.Contains(t, refused.Detail, place+": expected", route)
	}
	for body, place := range map[string]string{
		`{"action":"park","filter":{"topic":"a\u0000b"}}`:            "body.filter.topic",
		`{"action":"park","filter":{"topic":"a"},"note":"a\u0000b"}`: "body.note",
	} {
		refused := problem(t, a.ask(t, "ana", access.Admin, "POST /entries/bulk", body), http.StatusUnprocessableEntity)
		require.Contains(t, refused.Detail, place+": expected text", body)
	}
	edited := a.ask(t, "ana", access.Admin, "POST /entries/1/edit", `{"payload_base64":"AP8="}`)
	require.Equal(t, http.StatusOK, edited.Code)
}

// A program may make several APIs, at once: each has its own document, into whose schemas huma writes.
func TestNew_DocumentsShareNothing(t *testing.T) {
	a, b := newAPI(t), newAPI(t)
	one, other := map[uintptr]string{}, map[uintptr]string{}
	pointers(reflect.ValueOf(a.Document()), "document", one)
	pointers(reflect.ValueOf(b.Document()), "document", other)
	require.Greater(t, len(one), 500, "the walk finds the document's parts")
	for p, place := range other {
		require.Empty(t, one[p], "%s is part of both documents", place)
	}
	runtime.KeepAlive(a) // so that its addresses are not reused for the other
}

// pointers collects the addresses of everything that a part of a document points to, with its place.
func pointers(v reflect.Value, place string, found map[uintptr]string) {
	switch v.Kind() {
	case reflect.Pointer:
		if _, known := found[v.Pointer()]; known || v.IsNil() {
			return
		}
		found[v.Pointer()] = place
		pointers(v.Elem(), place, found)
	case reflect.Interface:
		pointers(v.Elem(), place, found)
	case reflect.Map:
		if v.Pointer() != 0 {
			found[v.Pointer()] = place
		}
		for _, key := range v.MapKeys() {
			pointers(v.MapIndex(key), fmt.Sprintf("%s.%v", place, key), found)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			pointers(v.Index(i), fmt.Sprintf("%s[%d]", place, i), found)
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[huma.Schema]() || v.Type().PkgPath() == reflect.TypeFor[huma.Schema]().PkgPath() {
			for i := range v.NumField() {
				if v.Type().Field(i).IsExported() {
					pointers(v.Field(i), place+"."+v.Type().Field(i).Name, found)
				}
			}
		}
	default: // a value, or what huma keeps for itself
	}
}
