package services

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
)

// Ports are below Linux's range for outgoing connections (32768 and up): a killed server must get its port back when it
// is restarted, and a client's connection could meanwhile have a port of that range.
//
// Test processes run in parallel, and a server starts listening seconds after its port was chosen, so a port without a
// listener may still belong to another process. Therefore each process uses ports from its own blocks, and owns a block
// by listening on the block's first port until it ends.
const (
	firstPort = 20000
	lastPort  = 32700
	blockSize = 50
)

// portSource allocates the ports of its blocks, each once.
type portSource struct {
	mu     sync.Mutex
	guards []net.Listener
	ports  []int // not allocated yet
}

var ownPorts portSource

// freePorts returns n ports without a listener on the loopback address that no other test uses.
func freePorts(n int) ([]int, error) { return ownPorts.take(n) }

func (s *portSource) take(n int) ([]int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ports []int
	for len(ports) < n {
		if len(s.ports) == 0 {
			if err := s.claim(); err != nil {
				return nil, err
			}
		}
		port := s.ports[0]
		s.ports = s.ports[1:]
		if l, err := listen(port); err == nil {
			ports = append(ports, port)
			_ = l.Close()
		}
	}
	return ports, nil
}

// claim takes over a block that no process owns.
func (s *portSource) claim() error {
	const blocks = (lastPort - firstPort) / blockSize
	for _, block := range rand.Perm(blocks) { //nolint:gosec // not a secret
		first := firstPort + block*blockSize
		guard, err := listen(first)
		if err != nil {
			continue
		}
		s.guards = append(s.guards, guard)
		for port := first + 1; port < first+blockSize; port++ {
			s.ports = append(s.ports, port)
		}
		return nil
	}
	return errors.New("services: no free ports")
}

func listen(port int) (net.Listener, error) {
	return net.Listen("tcp", loopback(port)) //nolint:noctx // returns at once
}

func loopback(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// FreePorts returns n ports of the loopback address for servers that a test starts without this package. The process
// keeps them, so that a killed server gets its port back.
func FreePorts(t testing.TB, n int) []int {
	t.Helper()
	ports, err := freePorts(n)
	if err != nil {
		t.Fatal(err)
	}
	return ports
}
