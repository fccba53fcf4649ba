// Command redrive operates dead letters: it collects them from brokers into a store, lists, searches and groups them,
// and sends them back to where they came from.
//
//	redrive demo                                     # everything in memory, with traffic and failures
//	redrive dlq list --topic orders --store dead-letters.db
//	redrive dlq redrive --topic orders --rate 50 --canary 1,10,100 --config redrive.yaml
//	redrive serve --config redrive.yaml
//
// Data go to stdout and everything else to stderr; redrive help exit-codes explains the exit codes.
package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	_ "github.com/go-sql-driver/mysql" // mysql, mariadb
	_ "github.com/jackc/pgx/v5/stdlib" // postgres
	_ "modernc.org/sqlite"             // sqlite

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/all" // every broker
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/client"
	_ "github.com/redrive-go/redrive/dlq/sqlstore" // every store
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// Exit codes, as help exit-codes explains them.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitPartial     = 4
	exitRefused     = 5
	exitInterrupted = 130
)

// run is the whole program. A first Ctrl-C ends the command cleanly, a second one immediately.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the second one is the operating system's
	return runContext(ctx, args, stdin, stdout, stderr)
}

func runContext(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{in: stdin, out: stdout, err: stderr}
	root := a.root()                          //nolint:contextcheck // commands get theirs from ExecuteContext
	root.SetArgs(append([]string{}, args...)) // nil would mean os.Args
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	refuseUnknownHelp(root)
	cmd, err := root.ExecuteContextC(ctx)
	if _, coded := errors.AsType[*codedError](err); err != nil && !coded && cobraUsage.MatchString(err.Error()) {
		// to cobra, an argument that a command does not take is an unknown command
		err = usagef("%s: %s", strings.Replace(err.Error(), "unknown command", "unexpected argument", 1), cmd.UseLine())
	}
	err = errors.Join(err, a.close())
	code := exitCode(ctx, err)
	if text := errorText(err); text != "" {
		_, _ = fmt.Fprintln(stderr, "redrive: "+text) // no reader is left for the error of a closed stderr
	}
	return code
}

// codedError is an error with an exit code. With an empty text nothing more is printed.
type codedError struct {
	code int
	text string
}

func (e *codedError) Error() string { return e.text }

func usagef(format string, args ...any) error {
	return &codedError{exitUsage, fmt.Sprintf(format, args...)}
}

func refusedf(format string, args ...any) error {
	return &codedError{exitRefused, fmt.Sprintf(format, args...)}
}

func exitCode(ctx context.Context, err error) int {
	coded, isCoded := errors.AsType[*codedError](err)
	switch {
	case err == nil:
		return exitOK
	case isCoded:
		return coded.code
	case ctx.Err() != nil:
		return exitInterrupted
	case errors.Is(err, dlq.ErrNotFound):
		return exitNotFound
	case errors.Is(err, dlq.ErrConflict):
		return exitRefused
	case errors.Is(err, dlq.ErrInvalid), errors.Is(err, brokers.ErrUnknownScheme):
		return exitUsage
	}
	switch statusOf(err) {
	case http.StatusNotFound:
		return exitNotFound
	case http.StatusConflict, http.StatusPreconditionFailed, http.StatusUnauthorized, http.StatusForbidden:
		return exitRefused
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge,
		http.StatusUnsupportedMediaType:
		return exitUsage
	default:
		return exitError
	}
}

// cobraUsage are the faults in arguments and in sets of flags that cobra reports as plain text; see flagError for those
// of one flag.
var cobraUsage = regexp.MustCompile(
	"^(unknown command|accepts |requires at least|if any flags in the group|at least one of the flags)")

// errorText is what to print for an error: nothing for an interruption, which the user wanted.
func errorText(err error) string {
	if err == nil || errors.Is(err, context.Canceled) {
		return ""
	}
	text := printable(unprefixed(err), true)
	if server, ok := errors.AsType[*client.UnreachableError](err); ok {
		if _, untrusted := errors.AsType[x509.UnknownAuthorityError](server); untrusted {
			text += ": name the file of its authority as ca of a profile"
		}
	}
	switch statusOf(err) {
	case 0:
		return text
	case http.StatusUnauthorized:
		return "the server does not know who you are (set REDRIVE_TOKEN, or --profile): " + text
	default:
		return locations.ReplaceAllString(text, "$1")
	}
}

// locations are where an API finds a fault in a request, without the name of the parameter.
var locations = regexp.MustCompile(`(?m)(^|; )(?:body|query)\.`)

// unprefixed returns an error's text without package names, which mean nothing to users.
func unprefixed(err error) string {
	return prefixes.ReplaceAllString(strings.TrimSpace(err.Error()), "$1")
}

// packages are the names that errors begin with, and redrive, which the command prints before every error.
var packages = []string{
	"brokerconfig", "brokers", "client", "collector", "config", "dashboard", "dlq", "dlqhttp", "dlqmetrics", "driver",
	"envelope", "gochannel", "kafka", "live", "memory", "middleware", "mirror", "nats", "notify", "pipelinemetrics",
	"rabbitmq", "redact", "redrive", "spool", "sqldb", "sqlqueue", "sqlstore", "watermill", "wire",
}

var prefixes = regexp.MustCompile(`(?m)(^|: )(?:(?:[a-z]+/)?(?:` + strings.Join(packages, "|") + `): )+`)
