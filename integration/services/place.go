package services

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/madflojo/testcerts"

	"github.com/redrive-go/redrive/integration/await"
)

// A server's directory has a file that our process keeps locked. If the lock is free, the process was killed before it
// could clean up, and the next start removes the directory: a single MariaDB leaves 150 MB behind.
const lockFile = "lock"

// locks are the lock files of our directories, by directory.
var locks sync.Map

// place is where a server runs: its directory, which is also its home, its account and its environment.
type place struct {
	dir   string // with data, configuration and the log; removed by Close
	owner account
	env   []string
	death syscall.Signal // when this process dies; defaults to SIGKILL
}

func newPlace(name string, owner account, ports int) (p place, free []int, err error) {
	if free, err = freePorts(ports); err != nil {
		return place{}, nil, err
	}
	if p.dir, err = newDir(name, owner); err != nil {
		return place{}, nil, fmt.Errorf("services: %s: %w", name, err)
	}
	p.owner = owner
	return p, free, nil
}

// in returns the path of a file of the server.
func (p *place) in(name string) string { return filepath.Join(p.dir, name) }

// write writes a file of the server that only its account may read.
func (p *place) write(name, text string) error {
	return errors.Join(os.WriteFile(p.in(name), []byte(text), 0o400), p.owner.own(p.in(name)))
}

// run returns the command for a program of the server.
func (p *place) run(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = p.dir
	cmd.Env = append([]string{"HOME=" + p.dir, "PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8"}, p.env...)
	p.owner.prepare(cmd, cmp.Or(p.death, syscall.SIGKILL))
	return cmd
}

// setUp runs a program that prepares the server's files.
func (p *place) setUp(ctx context.Context, program string, args ...string) error {
	if out, err := p.run(ctx, program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("services: %s: %w: %s", filepath.Base(program), err, out)
	}
	return nil
}

// newDir creates a server's directory, owned by the account.
func newDir(name string, owner account) (string, error) {
	sweep()
	dir, err := os.MkdirTemp("", "redrive-"+name+"-")
	if err != nil {
		return "", err
	}
	lock, err := os.Create(filepath.Join(dir, lockFile))
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	locks.Store(dir, lock)
	if err := errors.Join(tryLock(lock), owner.own(dir)); err != nil {
		return "", errors.Join(err, removeDir(dir))
	}
	return dir, nil
}

// removeDir removes a directory that newDir created. Helpers of a killed server may write for another moment, so it
// tries again.
func removeDir(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	err := poll(ctx, func() error { return os.RemoveAll(dir) })
	if lock, ok := locks.LoadAndDelete(dir); ok {
		err = errors.Join(err, lock.(*os.File).Close())
	}
	return err
}

// sweep removes the directories of dead processes if it can.
func sweep() {
	found, err := filepath.Glob(filepath.Join(os.TempDir(), "redrive-*", lockFile))
	if err != nil {
		return
	}
	for _, path := range found {
		// A new directory may not be locked yet.
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		lock, err := os.Open(path)
		if err != nil {
			continue
		}
		if tryLock(lock) == nil {
			_ = os.RemoveAll(filepath.Dir(path))
		}
		_ = lock.Close()
	}
}

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
	Need(t, err)
	return ports
}

var errNotLinux = errors.New("servers are started natively only on Linux")

// unpacked returns the directory into which integration/install.sh has unpacked a server: the one that dirEnv names, or
// name in the user's cache. It must have the file probe.
func unpacked(service, env, dirEnv, name, probe string) (string, error) {
	root := os.Getenv(dirEnv)
	err := errNotLinux
	if nativeSupported {
		err = nil
		if root == "" {
			root, err = os.UserCacheDir()
			root = filepath.Join(root, "redrive", name)
		}
		if err == nil {
			_, err = os.Stat(filepath.Join(root, probe))
		}
	}
	if err != nil {
		return "", &UnavailableError{Service: service, Env: env, Cause: err}
	}
	return root, nil
}

// installed returns the account for a server, all of whose files must exist.
func installed(service, env, userName string, files ...string) (account, error) {
	unavailable := func(cause error) (account, error) {
		return account{}, &UnavailableError{Service: service, Env: env, Cause: cause}
	}
	if !nativeSupported {
		return unavailable(errNotLinux)
	}
	for _, file := range files {
		if _, err := os.Stat(file); err != nil {
			return unavailable(err)
		}
	}
	owner, err := lookupAccount(userName)
	if err != nil {
		return unavailable(err)
	}
	return owner, nil
}

// Certificates are PEM files of an authority and of two certificates signed by it, which are valid for two hours.
type Certificates struct {
	CA                    string // the authority's certificate
	ServerCert, ServerKey string // for 127.0.0.1 and localhost
	ClientCert, ClientKey string
}

// NewCertificates creates an authority and its certificates in dir.
func NewCertificates(dir string) (*Certificates, error) {
	c := &Certificates{
		CA:         filepath.Join(dir, "ca.pem"),
		ServerCert: filepath.Join(dir, "server.pem"), ServerKey: filepath.Join(dir, "server-key.pem"),
		ClientCert: filepath.Join(dir, "client.pem"), ClientKey: filepath.Join(dir, "client-key.pem"),
	}
	authority := testcerts.NewCA()
	sign := func(name string, serial int64, certFile, keyFile string) error {
		pair, err := authority.NewKeyPairFromConfig(testcerts.KeyPairConfig{
			CommonName: name, SerialNumber: big.NewInt(serial),
			Domains: []string{"localhost"}, IPAddresses: []string{"127.0.0.1"},
		})
		if err != nil {
			return err
		}
		return pair.ToFile(certFile, keyFile)
	}
	return c, errors.Join(os.WriteFile(c.CA, authority.PublicKey(), 0o600),
		sign("server", 1, c.ServerCert, c.ServerKey), sign("client", 2, c.ClientCert, c.ClientKey))
}
