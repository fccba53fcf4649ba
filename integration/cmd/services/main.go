// Command services starts real servers for development and tests as local processes on free loopback ports, and stops
// them when it ends.
//
//	go run ./cmd/services                              # all of them, until Ctrl-C
//	go run ./cmd/services -run rabbitmq,postgres       # some of them
//	go run ./cmd/services -run kafka -- go test ./...  # for as long as a command runs
//
// Without a command it prints lines that a shell can source. A command gets the same variables in its environment, and
// its exit status becomes that of services.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/redrive-go/redrive/integration/services"
)

// server is a running server and the variables with its address.
type server struct {
	env   []string // NAME=value
	close func() error
}

// starters start the servers, by the names that integration/install.sh uses.
var starters = map[string]func(context.Context) (server, error){
	"rabbitmq": starter(services.StartRabbitMQ, func(r *services.Rabbit) []string {
		return []string{"TEST_AMQP_URL=" + r.URL, "TEST_AMQP_MANAGEMENT_URL=" + r.ManagementURL}
	}),
	"kafka": starter(services.StartKafka, func(k *services.KafkaServer) []string {
		return []string{"TEST_KAFKA_BROKERS=" + strings.Join(k.Brokers, ",")}
	}),
	"postgres": starter(services.StartPostgres, func(p *services.PostgresServer) []string {
		return []string{"TEST_POSTGRES_URL=" + p.URL}
	}),
	"mariadb": starter(services.StartMariaDB, func(m *services.MySQLServer) []string {
		return []string{"TEST_MARIADB_URL=" + m.URL}
	}),
	"mysql": starter(services.StartMySQL, func(m *services.MySQLServer) []string {
		return []string{"TEST_MYSQL_URL=" + m.URL}
	}),
}

func starter[S interface{ Close() error }, C any](
	start func(context.Context, C) (S, error), env func(S) []string,
) func(context.Context) (server, error) {
	return func(ctx context.Context) (server, error) {
		var config C
		s, err := start(ctx, config)
		if err != nil {
			return server{}, err
		}
		return server{env(s), s.Close}, nil
	}
}

const known = "rabbitmq,kafka,postgres,mariadb,mysql"

func main() {
	which := flag.String("run", known, "servers to start")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: services [-run %s] [-- command args...]\n", known)
		flag.PrintDefaults()
	}
	flag.Parse()

	// A second Ctrl-C ends this process at once; the kernel then kills the servers.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	status, err := run(ctx, strings.Split(*which, ","), flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = max(status, 1)
	}
	os.Exit(status)
}

// run starts the servers, runs the command or waits for ctx, and closes the servers. It returns the command's status.
func run(ctx context.Context, names, command []string) (status int, err error) {
	for _, name := range names {
		if starters[name] == nil {
			return 2, fmt.Errorf("services: unknown server %q, known are %s", name, known)
		}
	}
	running := make([]server, len(names))
	defer func() {
		for _, s := range running {
			if s.close != nil {
				err = errors.Join(err, s.close())
			}
		}
	}()
	begin := time.Now()
	group, groupCtx := errgroup.WithContext(ctx)
	for i, name := range names {
		group.Go(func() (err error) {
			running[i], err = starters[name](groupCtx)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return 1, err
	}
	var env []string
	for _, s := range running {
		env = append(env, s.env...)
	}
	slices.Sort(env)

	if len(command) > 0 {
		return runCommand(ctx, command, env)
	}
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		fmt.Printf("export %s='%s'\n", name, value)
	}
	fmt.Fprintf(os.Stderr, "# ready after %.1f s; Ctrl-C stops the servers and deletes their data\n",
		time.Since(begin).Seconds())
	<-ctx.Done()
	return 0, nil
}

// runCommand runs the command with our standard streams until it ends; when ctx is done, it sends the command a signal
// to stop.
func runCommand(ctx context.Context, command, env []string) (int, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return exit.ExitCode(), nil
	}
	return 0, err
}
