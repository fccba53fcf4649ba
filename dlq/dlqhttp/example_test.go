package dlqhttp_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// A program serves the dashboard and the API of its dead letters under a prefix on the program's server.
func ExampleNew() {
	ctx, logger := context.Background(), slog.New(slog.DiscardHandler)
	dir, err := os.MkdirTemp("", "redrive-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	letters, err := dlq.Open(ctx, "sqlite:"+filepath.Join(dir, "dead.db"), dlq.WithLogger(logger))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer letters.Close()
	runner, err := redrive.NewRunner(letters.Manager(nil), redrive.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	handler, err := dlqhttp.New(dlqhttp.Config{
		Manager: letters.Manager(nil), // a broker in its place lets people redrive
		Runner:  runner,
		Prefix:  "/ops",
		Logger:  logger,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("/ops/", handler)
	server := httptest.NewServer(mux) // http.ListenAndServe("127.0.0.1:8321", mux)
	defer server.Close()

	response, err := http.Get(server.URL + "/ops/readyz")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	fmt.Println(response.Status, err)
	fmt.Print(string(body))
	// Output:
	// 200 OK <nil>
	// {"status":"ok","components":{"store":{"status":"ok"}}}
}
