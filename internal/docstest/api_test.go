package docstest

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/config"
)

// embed is the snippet in docs/api.md.
func embed(mux *http.ServeMux, letters *dlq.Letters, broker dlq.Redriver,
	userOf func(*http.Request) (string, bool),
) error {
	runner, err := redrive.NewRunner(letters.Manager(broker), redrive.Config{})
	if err != nil {
		return err
	}
	handler, err := dlqhttp.New(dlqhttp.Config{
		Manager: letters.Manager(broker),
		Runner:  runner,
		Prefix:  "/ops",
		Auth: []dlqhttp.Authenticator{dlqhttp.AuthenticatorFunc(func(r *http.Request) (dlqhttp.Principal, error) {
			name, ok := userOf(r) // your login
			if !ok {
				return dlqhttp.Principal{}, dlqhttp.ErrNoCredentials
			}
			return dlqhttp.Principal{Name: name, Role: dlqhttp.Operator}, nil
		})},
	})
	if err != nil {
		return err
	}
	mux.Handle("/ops/", handler)
	return nil
}

// letters stores six dead letters for the examples of the API, three of them malformed.
func exampleLetters(t *testing.T) *dlq.Letters {
	t.Helper()
	letters, err := dlq.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "dead.db"), dlq.WithoutSpool())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, letters.Close()) })
	for i := 1; i <= 6; i++ {
		d := envelope.DeadLetter{
			Message: message.NewMessage(fmt.Sprintf("m-%d", i), fmt.Appendf(nil, `{"order": %d, "total": 10}`, i)),
			Handler: "billing",
			Err:     envelope.Error{Message: "bank: timeout"}, Reason: envelope.ReasonExhausted, Attempts: 4, At: time.Now(),
			Origin: envelope.Origin{Broker: "mem", Topic: "orders", Consumer: "billing"},
		}
		if i > 4 {
			d.Reason = envelope.ReasonMalformed
		}
		_, err := letters.Store().Put(t.Context(), dlq.NewEntry(&d))
		require.NoError(t, err)
	}
	return letters
}

// Every curl command in docs/api.md is sent, in order, to a server with tokens, and succeeds. Every group of routes has
// at least one.
func TestAPI_Examples(t *testing.T) {
	const token = "the-token-of-the-examples"
	auth, err := dlqhttp.Bearer(dlqhttp.Token{Name: "ana", Role: dlqhttp.Admin, SHA256: dlqhttp.HashToken(token)})
	require.NoError(t, err)
	sent := dlq.RedriverFunc(func(context.Context, envelope.Origin, *message.Message, time.Duration) error { return nil })
	letters := exampleLetters(t)
	runner, err := redrive.NewRunner(letters.Manager(sent), redrive.Config{})
	require.NoError(t, err)
	handler, err := dlqhttp.New(dlqhttp.Config{
		Manager: letters.Manager(sent), Runner: runner,
		Auth: []dlqhttp.Authenticator{auth},
	})
	require.NoError(t, err)
	server := httptest.NewServer(handler)
	defer server.Close()
	environment := strings.NewReplacer("$API", server.URL+"/api/v1", "$TOKEN", token)
	called := map[string]bool{}
	for _, p := range pages(t) {
		if p.path != "docs/api.md" {
			continue
		}
		for line := range strings.Lines(p.text) {
			command, ok := strings.CutPrefix(strings.TrimSpace(line), "$ curl ")
			if !ok {
				continue
			}
			request := curl(t, environment.Replace(command))
			response, err := server.Client().Do(request)
			require.NoError(t, err, command)
			body, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.Less(t, response.StatusCode, http.StatusBadRequest, "%s\n%s", command, body)
			called[strings.Split(strings.TrimPrefix(request.URL.Path, "/api/v1/"), "/")[0]] = true
		}
	}
	for _, group := range []string{"entries", "groups", "stats", "runs", "purge", "retention", "me", "validation"} {
		require.True(t, called[group], "no example for %s", group)
	}
}

// curl turns the arguments of a curl command into a request. It supports those that the page uses.
func curl(t *testing.T, command string) *http.Request {
	t.Helper()
	method, body, url := http.MethodGet, "", ""
	header := http.Header{}
	args := curlWords(t, command)
	for i := 0; i < len(args); i++ {
		switch args[i] {
		case "-X", "-H", "-d":
			i++
			switch value := args[i]; args[i-1] {
			case "-X":
				method = value
			case "-d":
				method, body = http.MethodPost, value
			default:
				name, text, ok := strings.Cut(value, ": ")
				require.True(t, ok, value)
				header.Set(name, text)
			}
		case "-N":
		default:
			require.Empty(t, url, command)
			url = args[i]
		}
	}
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	maps.Copy(request.Header, header)
	return request
}

// curlWords splits a command like a shell, as far as the page needs it.
func curlWords(t *testing.T, command string) []string {
	t.Helper()
	var (
		words []string
		word  strings.Builder
		quote rune
		open  bool
	)
	for _, c := range command {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(c)
		case c == '\'' || c == '"':
			quote, open = c, true
		case c == ' ':
			if open || word.Len() > 0 {
				words = append(words, word.String())
			}
			word.Reset()
			open = false
		default:
			word.WriteRune(c)
		}
	}
	require.Zero(t, quote, "a quote is open: %s", command)
	return append(words, word.String())
}

// The command accepts the configuration in docs/api.md.
func TestAPI_Configuration(t *testing.T) {
	for _, p := range pages(t) {
		if p.path != "docs/api.md" {
			continue
		}
		for _, block := range fence.FindAllStringSubmatch(p.text, -1) {
			if block[1] == "yaml" && strings.HasPrefix(block[2], "store:") {
				cfg, err := config.Parse([]byte(block[2]))
				require.NoError(t, err)
				require.Len(t, cfg.Server.Auth.Tokens, 1)
				return
			}
		}
	}
	require.Fail(t, "no configuration found")
}

// The handler in docs/api.md serves users whom the program's own login knows.
func TestAPI_Embedded(t *testing.T) {
	mux := http.NewServeMux()
	sent := dlq.RedriverFunc(func(context.Context, envelope.Origin, *message.Message, time.Duration) error { return nil })
	require.NoError(t, embed(mux, exampleLetters(t), sent, func(r *http.Request) (string, bool) {
		return "ana", r.Header.Get("Cookie") == "session=ana"
	}))
	for cookie, status := range map[string]int{"session=ana": http.StatusOK, "session=eve": http.StatusUnauthorized} {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/ops/api/v1/me", nil)
		r.Header.Set("Cookie", cookie)
		mux.ServeHTTP(w, r)
		require.Equal(t, status, w.Code, w.Body)
	}
}
