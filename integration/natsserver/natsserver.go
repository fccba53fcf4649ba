// Package natsserver runs NATS servers, which are a Go module, as processes that tests can kill: it starts the test
// program, which becomes a server in [Main].
package natsserver

import (
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

const environment = "REDRIVE_TEST_NATS_SERVER"

// settings are those of one server, for its process.
type settings struct {
	Name        string
	Port        int
	Store       string
	ClusterPort int
	Routes      []string
	MaxPayload  int32
}

// Main returns unless this process was started as a server. Call it first in TestMain.
func Main() {
	text := os.Getenv(environment)
	if text == "" {
		return
	}
	var s settings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		panic(err)
	}
	options := &server.Options{
		ServerName: s.Name, Host: "127.0.0.1", Port: s.Port, JetStream: true, StoreDir: s.Store, NoSigs: true,
		MaxPayload: s.MaxPayload, NoLog: true,
	}
	if s.ClusterPort != 0 {
		options.Cluster = server.ClusterOpts{Name: "redrive", Host: "127.0.0.1", Port: s.ClusterPort}
		for _, route := range s.Routes {
			options.Routes = append(options.Routes, &url.URL{Scheme: "nats", Host: route})
		}
	}
	started, err := server.NewServer(options)
	if err != nil {
		panic(err)
	}
	started.Start()
	_, _ = os.Stdin.Read(make([]byte, 1)) // our standard input is closed at the end of the test in any case
	started.Shutdown()
	os.Exit(0)
}

// Server is one server.
type Server struct {
	t        testing.TB
	settings settings
	cmd      *exec.Cmd
}

// Start starts a server for the test.
func Start(t testing.TB) *Server {
	t.Helper()
	return Limited(t, 0)
}

// Limited is Start for a server with this max_payload; 0 leaves its default.
func Limited(t testing.TB, maxPayload int32) *Server {
	t.Helper()
	s := &Server{t: t, settings: settings{
		Name: "one", Port: services.FreePorts(t, 1)[0], Store: t.TempDir(), MaxPayload: maxPayload,
	}}
	t.Cleanup(s.Kill)
	s.Up()
	return s
}

// Cluster starts a cluster of three servers.
func Cluster(t testing.TB) []*Server {
	t.Helper()
	ports := services.FreePorts(t, 6)
	var routes []string
	for _, port := range ports[3:] {
		routes = append(routes, address(port))
	}
	servers := make([]*Server, 3)
	for i := range servers {
		servers[i] = &Server{t: t, settings: settings{
			Name: "s" + strconv.Itoa(i+1), Port: ports[i], Store: t.TempDir(), ClusterPort: ports[3+i], Routes: routes,
		}}
		t.Cleanup(servers[i].Kill)
		servers[i].Up()
	}
	return servers
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// Name is the server's name.
func (s *Server) Name() string { return s.settings.Name }

// URL is where the server listens.
func (s *Server) URL() string { return "nats://" + address(s.settings.Port) }

// Up starts the server, also after Kill, and waits until it listens.
func (s *Server) Up() {
	s.t.Helper()
	text, err := json.Marshal(s.settings)
	require.NoError(s.t, err)
	s.cmd = exec.Command(os.Args[0]) //nolint:gosec,noctx // this very program; Kill ends it
	s.cmd.Env = append(os.Environ(), environment+"="+string(text))
	s.cmd.Stderr = os.Stderr
	_, err = s.cmd.StdinPipe()
	require.NoError(s.t, err)
	require.NoError(s.t, s.cmd.Start())
	await.True(s.t, func() bool {
		conn, err := net.DialTimeout("tcp", address(s.settings.Port), time.Second) //nolint:noctx // it has a timeout
		if err != nil {
			return false
		}
		return conn.Close() == nil
	}, fmt.Sprintf("server %s does not listen", s.settings.Name))
}

// Kill ends the server with SIGKILL. It may be down already.
func (s *Server) Kill() {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait() // killed
	s.cmd = nil
}
