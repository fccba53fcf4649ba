package middleware_test

import (
	"context"
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/middleware"
)

// ideal is a subscriber that costs next to nothing: it delivers prepared messages.
type ideal struct{ messages chan *message.Message }

func (s *ideal) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return s.messages, nil
}
func (s *ideal) Close() error { return nil }

// newIdealRouter returns a function that sends n messages through a router with the middlewares, and returns the
// processor time per message.
func newIdealRouter(b testing.TB, with ...message.HandlerMiddleware) func(n int) float64 {
	b.Helper()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(b, err)
	router.AddMiddleware(with...)
	sub := &ideal{make(chan *message.Message)}
	router.AddConsumerHandler("orders", "orders", sub, func(*message.Message) error { return nil })
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	<-router.Running()
	b.Cleanup(func() {
		stop()
		close(sub.messages)
		require.NoError(b, <-ended)
	})
	template := benchMessage(b)
	return func(n int) float64 {
		const window = 64
		batch := make([]*message.Message, n)
		for i := range batch {
			batch[i] = message.NewMessage(template.UUID, template.Payload)
			batch[i].Metadata = template.Metadata
		}
		start := cpuTime()
		for i, m := range batch {
			sub.messages <- m
			if i >= window {
				<-batch[i-window].Acked()
			}
		}
		for _, m := range batch[max(0, n-window):] {
			<-m.Acked()
		}
		return float64(cpuTime()-start) / float64(n)
	}
}

// BenchmarkRouter is the rate of a router with the pipeline divided by that of the router alone, in processor time, on
// a subscriber that costs nothing. Target: 0.9. A loop in one goroutine does not show it: a router runs each message in
// a new goroutine, whose 2 kB stack is copied when a frame does not fit.
func BenchmarkRouter(b *testing.B) {
	stock := stockMiddleware(b)
	for name, with := range map[string]message.HandlerMiddleware{
		"pipeline": benchPipeline(b, nil).Middleware,
		"observer": benchPipeline(b, func(c *middleware.Config) { c.Observer = middleware.NopObserver{} }).Middleware,
		"stock":    stock,
	} {
		b.Run(name, func(b *testing.B) {
			const turn = 20_000
			alone, ours := newIdealRouter(b), newIdealRouter(b, with)
			alone(turn)
			ours(turn)
			var ratios, costs []float64
			for b.Loop() {
				a, o := alone(turn), ours(turn)
				ratios, costs = append(ratios, a/o), append(costs, o-a)
			}
			b.ReportMetric(median(ratios), "ratio")
			b.ReportMetric(median(costs), "extra-cpu-ns/msg")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func stockMiddleware(b testing.TB) message.HandlerMiddleware {
	b.Helper()
	return func(next message.HandlerFunc) message.HandlerFunc { return stockChain(b, next) }
}

// The frames between a router and its handler fit into a new goroutine's stack of 2 kB, with room for both; the runtime
// keeps 928 bytes of it, and the router has about 200. They used to have 1,688 and 1,064 bytes, and the stack was
// copied twice for each message. The path to an observer is larger, but leaves it 200 bytes.
func TestPipeline_FramesAreSmall(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's instrumentation adds frames")
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-gcflags=-S", ".")
	listing, err := cmd.CombinedOutput()
	require.NoError(t, err)
	frames := map[string]int{}
	for _, f := range regexp.MustCompile(`(?m)TEXT\s+\S*/middleware\.(\S+)\(SB\), .*\$(\d+)-\d+`).FindAllSubmatch(listing,
		-1) {
		frames[string(f[1])], err = strconv.Atoi(string(f[2]))
		require.NoError(t, err)
	}
	const closure, deliver = "(*Pipeline).Middleware.func1", "(*Pipeline).deliver"
	for name, way := range map[string]struct {
		limit  int
		frames []string
	}{
		"to the handler":       {400, []string{closure, deliver, "(*run).handle"}},
		"to what it received":  {560, []string{closure, deliver, "(*snapshot).take"}},
		"to Observer.Started":  {480, []string{closure, deliver, "(*run).observeStarted", "(*run).describe"}},
		"to Observer.Finished": {640, []string{closure, deliver, "(*run).succeeded", "(*run).finished"}},
		"from an observer": {680, []string{
			closure, deliver, "(*run).succeeded", "(*run).finished", "(*Pipeline).observerPanic",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			sum := 0
			for _, function := range way.frames {
				size, ok := frames[function]
				require.True(t, ok, "%s is not in the listing of %d functions", function, len(frames))
				t.Logf("%s: %d bytes", function, size)
				sum += size
			}
			require.LessOrEqual(t, sum, way.limit)
		})
	}
}
