package kafkatest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/middleware"
)

const (
	consumerURL   = "REDRIVE_KAFKATEST_URL"
	consumerTopic = "REDRIVE_KAFKATEST_TOPIC"
	consumerWork  = "REDRIVE_KAFKATEST_WORK"
)

// consumerMain is a consumer in a separate process: a router with a pipeline that fails every tenth message of a key
// once. It prints a line for every success.
func consumerMain(ctx context.Context, url string) int {
	b, err := brokers.OpenConfig(ctx, brokers.Config{URL: url, PublishTimeout: await.Patience})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: b, DeadLetters: b, Logger: slog.New(slog.DiscardHandler),
		MaxAttempts: 3, Backoff: middleware.Constant(300 * time.Millisecond),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return 1
	}
	router.AddMiddleware(pipeline.Middleware)
	work, err := time.ParseDuration(os.Getenv(consumerWork))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var out sync.Mutex
	router.AddConsumerHandler("consumer", os.Getenv(consumerTopic), b.Subscriber(), func(m *message.Message) error {
		number, _ := strconv.Atoi(string(m.Payload))
		if a, ok := middleware.AttemptFrom(m.Context()); ok && number/numberOfKeys%10 == 3 && a.Number == 1 {
			return errors.New("fails the first time")
		}
		<-time.After(work) // real time: the work
		out.Lock()
		defer out.Unlock()
		_, err := fmt.Fprintln(os.Stdout, string(m.Payload))
		return err
	})
	if err := router.Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// numberOfKeys is how many keys the numbered messages have.
const numberOfKeys = 50

// process is a running consumerMain.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

func startConsumer(t *testing.T, url, topic string, work time.Duration, onHandled func(payload string)) *process {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), consumerURL+"="+url, consumerTopic+"="+topic, consumerWork+"="+work.String())
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p := &process{cmd: cmd, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			onHandled(strings.TrimSpace(lines.Text()))
		}
		_ = cmd.Wait()
	}()
	t.Cleanup(p.kill)
	return p
}

// kill is kill -9.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// ledger counts how often each message was handled successfully.
type ledger struct {
	mu      sync.Mutex
	times   map[string]int
	total   int
	changed chan struct{}
}

func newLedger() *ledger { return &ledger{times: map[string]int{}, changed: make(chan struct{}, 1)} }

func (l *ledger) handled(payload string) {
	l.mu.Lock()
	l.times[payload]++
	l.total++
	l.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

func (l *ledger) counts() (different, total int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.times), l.total
}

// wait waits until n different messages were handled.
func (l *ledger) wait(t *testing.T, different int) {
	t.Helper()
	await.Count(t, different, func() int { have, _ := l.counts(); return have }, "messages are missing")
}

// settle waits until no message has been handled for a while, and returns how often messages were handled again.
func (l *ledger) settle(quiet time.Duration) (duplicates int) {
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	for {
		select {
		case <-l.changed:
			timer.Reset(quiet)
		case <-timer.C:
			different, total := l.counts()
			return total - different
		}
	}
}

// of returns how often a message was handled.
func (l *ledger) of(payload string) (times int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.times[payload]
}
