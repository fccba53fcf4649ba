package services

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are taken from below Linux's range for outgoing connections (32768 and up): a server that was killed must get
// its port back at its restart, and from that range a client's connection could have taken it meanwhile.
const (
	firstPort = 20000
	lastPort  = 32700
)

var portsInUse = struct {
	sync.Mutex
	taken map[int]bool
}{taken: make(map[int]bool)}

// freePorts returns n ports that nothing on the loopback address listens on and that we gave to nobody else.
func freePorts(n int) ([]int, error) {
	portsInUse.Lock()
	defer portsInUse.Unlock()
	var ports []int
	for range 1000 {
		if len(ports) == n {
			return ports, nil
		}
		port := firstPort + rand.IntN(lastPort-firstPort) //nolint:gosec // no secret
		if portsInUse.taken[port] || !portFree(port) {
			continue
		}
		portsInUse.taken[port] = true
		ports = append(ports, port)
	}
	return nil, errors.New("services: no free ports")
}

func portFree(port int) bool {
	l, err := net.Listen("tcp", loopback(port)) //nolint:noctx // returns at once
	if err != nil {
		return false
	}
	return l.Close() == nil
}

func loopback(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
