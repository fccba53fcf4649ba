package release_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// goMod is a go.mod, as go mod edit prints it.
type goMod struct {
	Go      string
	Replace []any
	Require []struct {
		Path, Version string
		Indirect      bool
	}
}

func (c consumer) goMod(t *testing.T) (m goMod) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(c.run(t, "go", "mod", "edit", "-json")), &m))
	return m
}

// libraryUser is a service that only uses retries on the memory broker.
const libraryUser = `package main

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

func main() {
	broker, err := brokers.Open(context.Background(), "mem://")
	if err != nil {
		panic(err)
	}
	_, err = middleware.New(middleware.Config{Rescheduler: broker, DeadLetters: broker})
	fmt.Println(err, len(envelope.KeyMessageID) > 0, message.NewMessage("1", nil).UUID)
}
`

// A service that imports the pipeline and the memory broker gets only their dependencies into its go.mod, and none of
// the clients, databases and exporters of the module's other packages.
func TestModule_OfALibraryUser(t *testing.T) {
	t.Parallel()
	c := newConsumer(t)
	c.run(t, "go", "mod", "init", "example.com/shop")
	require.NoError(t, os.WriteFile(filepath.Join(c.dir, "main.go"), []byte(libraryUser), 0o600))
	c.run(t, "go", "get", module+"@"+tag)
	c.run(t, "go", "mod", "tidy")
	require.Equal(t, "<nil> true 1\n", c.run(t, "go", "run", "."))
	var required []string
	for _, r := range c.goMod(t).Require {
		required = append(required, r.Path)
	}
	slices.Sort(required)
	require.Equal(t, []string{
		"github.com/ThreeDotsLabs/watermill",
		"github.com/bits-and-blooms/bitset", // of failsafe-go
		"github.com/cenkalti/backoff/v5",
		"github.com/failsafe-go/failsafe-go",
		"github.com/google/uuid",
		"github.com/lithammer/shortuuid/v3", // the last three are Watermill's
		"github.com/oklog/ulid",
		"github.com/pkg/errors",
		module,
	}, required, "docs/releasing.md shows this list")
}

// This is the cost of having one module: a service that uses OpenTelemetry, Prometheus, pgx or testify itself gets at
// least the versions that this module requires, even if it does not import the packages that need them. It gets no
// modules that it does not use.
func TestModule_RaisesVersions(t *testing.T) {
	t.Parallel()
	c := newConsumer(t)
	own := map[string]string{
		"github.com/jackc/pgx/v5": "v5.7.2", "github.com/prometheus/client_golang": "v1.20.5",
		"github.com/stretchr/testify": "v1.10.0",
		"go.opentelemetry.io/otel":    "v1.33.0", "github.com/rs/zerolog": "v1.33.0", "google.golang.org/grpc": "v1.69.2",
	}
	c.run(t, "go", "mod", "init", "example.com/shop")
	for path, version := range own {
		c.run(t, "go", "mod", "edit", "-require="+path+"@"+version)
	}
	c.run(t, "go", "get", module+"@"+tag)
	var raised []string
	for _, r := range c.goMod(t).Require {
		if before, ok := own[r.Path]; ok && before != r.Version {
			raised = append(raised, r.Path)
		}
	}
	slices.Sort(raised)
	require.Equal(t, []string{
		"github.com/jackc/pgx/v5", "github.com/prometheus/client_golang", "github.com/stretchr/testify",
		"go.opentelemetry.io/otel",
	}, raised, "docs/releasing.md names them")
}

// The command can be installed from the tag, and reports its version.
func TestModule_InstallsTheCommand(t *testing.T) {
	t.Parallel()
	c := newConsumer(t)
	c.run(t, "go", "install", module+"/cmd/redrive@"+tag)
	require.True(t, strings.HasPrefix(c.run(t, c.bin("redrive"), "--version"), "redrive "+tag+" "))
}
