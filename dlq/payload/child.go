package payload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime/debug"
	"sync"
	"time"

	"github.com/redrive-go/redrive/dlq/driver"
)

// Limits of a child process.
const (
	children     = 2 // at once; further expressions wait
	childStart   = time.Minute
	childTimeout = 5 * time.Second // for one payload, reading and writing it included; the expression has its own second
	childMemory  = 512 << 20
)

// Child evaluates in separate processes, each limited to half a gigabyte of memory and five seconds per payload: one
// that exceeds them is killed, and its expression rejected. The process is a command of the program that calls [Serve].
// Make one with [NewChild].
type Child struct {
	command []string
	free    chan *process // one for each that may run; nil if it has to be started
	closed  chan struct{}
	close   sync.Once
}

var _ Evaluator = (*Child)(nil)

// NewChild makes an evaluator whose processes are started with a command. Close ends them.
func NewChild(command ...string) (*Child, error) {
	if len(command) == 0 {
		return nil, fmt.Errorf("jq: %w: the command of a child process is required", driver.ErrInvalid)
	}
	c := &Child{command: command, free: make(chan *process, children), closed: make(chan struct{})}
	for range children {
		c.free <- nil
	}
	return c, nil
}

// Close ends the processes when their work is done.
func (c *Child) Close() error {
	c.close.Do(func() {
		close(c.closed)
		for range children {
			if p := <-c.free; p != nil {
				p.kill()
			}
		}
	})
	return nil
}

// Evaluate implements [Evaluator].
func (c *Child) Evaluate(ctx context.Context, expression string, payload []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil { // a free process would not be of use
		return nil, err
	}
	var p *process
	select {
	case <-c.closed:
		return nil, fmt.Errorf("%w: %w", ErrNotEvaluated, driver.ErrClosed)
	case <-ctx.Done():
		return nil, ctx.Err()
	case p = <-c.free:
	}
	answer, p, err := c.ask(ctx, p, question{expression, payload})
	c.free <- p
	if err == nil && answer.Fault != "" {
		err = &fault{answer.Fault, answer.Invalid}
	}
	return answer.Payload, err
}

// ask sends a question to a process, which it starts if p is nil, and returns the process if it is still running.
func (c *Child) ask(ctx context.Context, p *process, q question) (answer, *process, error) {
	if p == nil {
		var err error
		if p, err = start(ctx, c.command); err != nil {
			return answer{}, nil, fmt.Errorf("%w: start a child process: %w", ErrNotEvaluated, err)
		}
	}
	a, err := p.exchange(ctx, childTimeout, func() error { return p.in.Encode(q) })
	if err == nil && a.Fault != errTooLong.Error() {
		return a, p, nil
	}
	p.kill() // an evaluation that timed out leaves its memory behind
	if err == nil {
		return a, nil, nil
	}
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("jq: the expression did not end within %s, and its process was killed", childTimeout)
	default:
		err = fmt.Errorf("jq: the child process died: does the expression need more than %d MiB of memory?", childMemory>>20)
	}
	return answer{}, nil, err
}

// question and answer go through the pipes of a process as JSON. Its first answer, without a question, means that it is
// ready.
type question struct {
	Expression string `json:"expression"`
	Payload    []byte `json:"payload"`
}

type answer struct {
	Payload []byte `json:"payload,omitempty"`
	Fault   string `json:"fault,omitempty"`
	Invalid bool   `json:"invalid,omitempty"`
}

// fault is an evaluation error from the other process.
type fault struct {
	text    string
	invalid bool
}

func (f *fault) Error() string { return f.text }

// Is makes errors.Is(err, ErrInvalid) true for the other process's invalid errors.
func (f *fault) Is(target error) bool { return f.invalid && target == driver.ErrInvalid }

type process struct {
	command *exec.Cmd
	pipe    io.Closer
	in      *json.Encoder
	out     *json.Decoder
}

func start(ctx context.Context, command []string) (*process, error) {
	cmd := exec.Command(command[0], command[1:]...) //nolint:gosec,noctx // ours; it lives on
	cmd.Env = []string{"GOMEMLIMIT=384MiB"}         // nothing that is secret
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{command: cmd, pipe: in, in: json.NewEncoder(in), out: json.NewDecoder(out)}
	if _, err := p.exchange(ctx, childStart, func() error { return nil }); err != nil {
		p.kill()
		return nil, err
	}
	return p, nil
}

// exchange sends, and reads one answer. After an error the process must be killed, which also ends the send or read.
func (p *process) exchange(ctx context.Context, timeout time.Duration, send func() error) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var (
		a    answer
		err  error
		done = make(chan struct{})
	)
	go func() {
		defer close(done)
		if err = send(); err == nil {
			err = p.out.Decode(&a)
		}
	}()
	select {
	case <-done:
		return a, err
	case <-ctx.Done():
		_ = p.command.Process.Kill()
		<-done
		return answer{}, ctx.Err()
	}
}

func (p *process) kill() {
	_ = p.command.Process.Kill() // it may have died already
	_ = p.pipe.Close()
	_ = p.command.Wait()
}

// Serve is the child process of a [Child]: it evaluates its input until that ends. It limits the memory of the process,
// so the process must not do anything else.
func Serve(in io.Reader, out io.Writer) error {
	limitMemory(childMemory)
	debug.SetMaxStack(childMemory / 4)
	from, to := json.NewDecoder(in), json.NewEncoder(out)
	if err := to.Encode(answer{}); err != nil {
		return err
	}
	var here InProcess
	for {
		var q question
		if err := from.Decode(&q); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		payload, err := here.Evaluate(context.Background(), q.Expression, q.Payload)
		a := answer{Payload: payload}
		if err == nil {
			err = checkSize(payload, q.Payload)
		}
		if err != nil {
			a = answer{Fault: err.Error(), Invalid: errors.Is(err, driver.ErrInvalid)}
		}
		if err := to.Encode(a); err != nil {
			return err
		}
	}
}
