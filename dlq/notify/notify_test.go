package notify_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/notify"
	"github.com/redrive-go/redrive/dlq/redact"
	"github.com/redrive-go/redrive/dlq/redrive"
	_ "github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/logbuffer"
	"github.com/redrive-go/redrive/middleware"
)

const patience = 2 * time.Minute

// post is a request to a receiver.
type post struct {
	header http.Header
	body   []byte
	notice wire.Notice
}

// receiver is an HTTP server that sends the planned answers, then 200.
type receiver struct {
	*httptest.Server

	mu       sync.Mutex
	statuses []int
	posts    []post
}

func newReceiver(t *testing.T, statuses ...int) *receiver {
	t.Helper()
	r := &receiver{statuses: statuses}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		p := post{header: q.Header, body: body}
		_ = json.Unmarshal(body, &p.notice)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.posts = append(r.posts, p)
		if len(r.statuses) > 0 {
			w.Header().Set("Location", "http://127.0.0.1:1/elsewhere")
			w.WriteHeader(r.statuses[0])
			r.statuses = r.statuses[1:]
		}
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) all() []post {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.posts)
}

// await waits until the receiver has had n posts.
func (r *receiver) await(t *testing.T, n int) []post {
	t.Helper()
	require.Eventually(t, func() bool { return len(r.all()) >= n }, patience, 2*time.Millisecond)
	return r.all()
}

func (r *receiver) texts() []string {
	var texts []string
	for _, p := range r.all() {
		texts = append(texts, p.notice.Text)
	}
	return texts
}

func (r *receiver) hook(name string) notify.Receiver {
	return notify.Receiver{Name: name, URL: r.URL + "/hook", Secret: "a secret"}
}

// open opens the store of a test; each server has its own connection to it.
func open(t *testing.T, path string) *dlq.Letters {
	t.Helper()
	quiet := dlq.WithLogger(slog.New(slog.DiscardHandler))
	letters, err := dlq.Open(t.Context(), "sqlite:"+path+"?synchronous=normal", dlq.WithoutSpool(), quiet)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, letters.Close()) })
	return letters
}

// serve runs a notifier with the pipeline that retries its deliveries, and returns a function that ends it.
func serve(t *testing.T, cfg notify.Config, dead middleware.DeadLetterSink) (stop func()) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	broker, err := memory.New(brokers.Config{Logger: quiet})
	require.NoError(t, err)
	cfg.Publisher, cfg.Interval = broker.Publisher(), 5*time.Millisecond
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	notifier, err := notify.New(cfg)
	require.NoError(t, err)
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: broker, DeadLetters: dead, Backoff: middleware.Constant(time.Millisecond), MaxAttempts: 4, Logger: quiet,
		Hooks: middleware.Hooks{OnDeadLetter: func(ctx context.Context, p middleware.DeadLetterParams) error {
			notifier.GaveUp(ctx, p.DeadLetter)
			return nil
		}},
	})
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(pipeline.Middleware)
	for _, name := range notifier.Receivers() {
		router.AddConsumerHandler("notify "+name, notify.Topic(name), broker.Subscriber(), func(m *message.Message) error {
			return notifier.Deliver(m.Context(), name, m.Payload)
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = router.Run(ctx) })
	running.Go(func() { _ = notifier.Run(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		_ = broker.Close()
	})
	t.Cleanup(stop)
	return stop
}

// begun waits until the notifier runs: it reports events from then on.
func begun(t *testing.T, letters *dlq.Letters, receivers int) {
	t.Helper()
	s, _ := driver.As[driver.NoticeStore](letters.Store())
	require.Eventually(t, func() bool {
		had, err := s.Notices(t.Context(), time.Now())
		return err == nil && len(had) >= receivers
	}, patience, 2*time.Millisecond)
}

var number atomic.Int64

// die puts a dead letter into the store, and returns its fingerprint.
func die(t *testing.T, letters *dlq.Letters, text string, at time.Time) string {
	t.Helper()
	m := message.NewMessage(fmt.Sprint("m-", number.Add(1)), []byte(`{"card":"4111"}`))
	e := dlq.NewEntry(&envelope.DeadLetter{
		Message: m, Reason: envelope.ReasonExhausted, Err: envelope.Error{Message: text}, Handler: "charge", Attempts: 4,
		At:     at,
		Origin: envelope.Origin{Broker: "mem", Topic: "orders", Consumer: "billing"},
	})
	_, err := letters.Store().Put(t.Context(), e)
	require.NoError(t, err)
	return e.Fingerprint
}

// start puts a run of a state into the store.
func start(t *testing.T, letters *dlq.Letters, id string, state redrive.State, cause string) {
	t.Helper()
	runs, _ := driver.As[redrive.Store](letters.Store())
	now := time.Now()
	run := &redrive.Run{Run: wire.Run{
		ID: id, State: redrive.Preparing, Version: 1, CreatedAt: now, CreatedBy: "ana", ChangedAt: now, ChangedBy: "ana",
	}}
	record := driver.AuditRecord{At: now, Actor: "ana", Action: redrive.ActionStart, Run: id}
	require.NoError(t, runs.CreateRun(t.Context(), run, record))
	run.State, run.Cause, run.Version, run.ChangedAt = state, cause, 2, time.Now()
	run.StoppedAt = run.ChangedAt
	require.NoError(t, runs.ChangeRun(t.Context(), run, record))
}

// One of two servers reports a new cause, signed, and neither repeats it after a restart.
func TestNotifier_Once(t *testing.T) {
	t.Parallel()
	path, ops := filepath.Join(t.TempDir(), "dead.db"), newReceiver(t)
	first, second := open(t, path), open(t, path)
	die(t, first, "old news", time.Now().Add(-time.Minute))
	var stops []func()
	for _, letters := range []*dlq.Letters{first, second} {
		stops = append(stops, serve(t, notify.Config{
			Store: letters.Store(), Receivers: []notify.Receiver{ops.hook("ops")}, PublicURL: "https://ops.example/redrive/",
		}, letters))
	}
	begun(t, first, 1)
	fingerprint := die(t, first, "no such account", time.Now())
	p := ops.await(t, 1)[0]
	require.Equal(t, []string{"New cause of dead letters: no such account (in charge)", "new_cause", fingerprint},
		[]string{p.notice.Text, p.notice.Kind, p.notice.Cause.Fingerprint})
	require.Equal(t, "https://ops.example/redrive/groups/"+fingerprint, p.notice.Link)
	require.Equal(t, p.notice.ID, p.header.Get(notify.HeaderID))
	signature := notify.Sign([]byte("a secret"), p.notice.ID, p.header.Get(notify.HeaderTimestamp), p.body)
	require.Equal(t, signature, p.header.Get(notify.HeaderSignature))

	for _, stop := range stops {
		stop()
	}
	s, _ := driver.As[driver.NoticeStore](first.Store())
	held, err := s.HoldNotices(t.Context(), "gone", time.Now().Add(2*time.Minute), time.Now().Add(-time.Hour))
	require.NoError(t, err)
	require.True(t, held, "the hold of a server that has ended expires")
	serve(t, notify.Config{Store: second.Store(), Receivers: []notify.Receiver{ops.hook("ops")}}, second)
	die(t, second, "another one", time.Now())
	ops.await(t, 2)
	require.Equal(t, []string{
		"New cause of dead letters: no such account (in charge)", "New cause of dead letters: another one (in charge)",
	}, ops.texts())
}

// The signature is the one of the specification's example.
func TestSign(t *testing.T) {
	t.Parallel()
	secret, err := notify.Key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	require.NoError(t, err)
	require.Equal(t, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
		notify.Sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`)))
}

// A cause that returns after a quiet day is reported, and so are runs that need a person.
func TestNotifier_Kinds(t *testing.T) {
	t.Parallel()
	letters, ops := open(t, filepath.Join(t.TempDir(), "dead.db")), newReceiver(t)
	now := time.Now()
	die(t, letters, "bank is closed", now.Add(-72*time.Hour))
	die(t, letters, "always there", now.Add(-26*time.Hour))
	die(t, letters, "always there", now.Add(-3*time.Hour))
	s, _ := driver.As[driver.NoticeStore](letters.Store())
	require.NoError(t, s.PutNotice(t.Context(), driver.Notice{Receiver: "ops", At: now.Add(-time.Minute)}))
	die(t, letters, "bank is closed", now)
	die(t, letters, "always there", now)
	start(t, letters, "stops", redrive.Stopped, "60 % died again")
	start(t, letters, "waits", redrive.AwaitingApproval, "")
	start(t, letters, "goes", redrive.Paused, "")
	serve(t, notify.Config{Store: letters.Store(), Receivers: []notify.Receiver{ops.hook("ops")}}, letters)
	ops.await(t, 3)
	runner, err := redrive.NewRunner(letters.Manager(nil), redrive.Config{})
	require.NoError(t, err)
	rate := 3.0
	_, err = runner.AdjustRun(t.Context(), "stops", redrive.Adjustment{Rate: &rate}, dlq.By{Actor: "ana"})
	require.NoError(t, err, "it does not stop again")
	die(t, letters, "the end", time.Now())
	ops.await(t, 4)
	require.ElementsMatch(t, []string{
		"A cause has come back: bank is closed (in charge)",
		"Redrive run stops, started by ana, has stopped: 60 % died again",
		"Redrive run waits, started by ana, waits for approval of 0 messages",
		"New cause of dead letters: the end (in charge)",
	}, ops.texts())
}

// A steady cause whose earlier deaths were purged is not one that has come back.
func TestNotifier_PurgedIsNotQuiet(t *testing.T) {
	t.Parallel()
	letters, ops := open(t, filepath.Join(t.TempDir(), "dead.db")), newReceiver(t)
	now := time.Now()
	s, _ := driver.As[driver.NoticeStore](letters.Store())
	require.NoError(t, s.PutNotice(t.Context(), driver.Notice{Receiver: "ops", At: now.Add(-time.Minute)}))
	for _, ago := range []time.Duration{72 * time.Hour, 10 * time.Hour} {
		die(t, letters, "always there", now.Add(-ago))
	}
	manager, err := dlq.NewManager(dlq.ManagerConfig{Store: letters.Store(), Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	_, err = letters.Store().Change(t.Context(), driver.Change{
		Action: driver.ActionResolve, IDs: []int64{1, 2}, Actor: "ana", At: now.Add(-2 * time.Hour),
	})
	require.NoError(t, err)
	retention := dlq.Retention{Resolved: time.Hour}
	purged, err := manager.Retain(t.Context(), retention)
	require.NoError(t, err)
	require.Equal(t, 2, purged)
	die(t, letters, "always there", now)
	die(t, letters, "the end", now)
	serve(t, notify.Config{
		Store: letters.Store(), Retention: retention, Receivers: []notify.Receiver{ops.hook("ops")},
	}, letters)
	ops.await(t, 1)
	die(t, letters, "another", time.Now())
	ops.await(t, 2)
	require.Equal(t, []string{
		"New cause of dead letters: the end (in charge)", "New cause of dead letters: another (in charge)",
	}, ops.texts())
}

// The pipeline retries a notice that a receiver does not accept, with the same id.
func TestNotifier_Retried(t *testing.T) {
	t.Parallel()
	letters, flaky := open(t, filepath.Join(t.TempDir(), "dead.db")), newReceiver(t, 503, 429, 500)
	serve(t, notify.Config{Store: letters.Store(), Receivers: []notify.Receiver{flaky.hook("flaky")}}, letters)
	begun(t, letters, 1)
	die(t, letters, "no such account", time.Now())
	posts := flaky.await(t, 4)
	for _, p := range posts {
		require.Equal(t, posts[0].notice, p.notice)
	}
}

// A notice that a receiver refuses is dead-lettered, a try that hangs ends, and other receivers wait for neither.
func TestNotifier_Refused(t *testing.T) {
	t.Parallel()
	letters := open(t, filepath.Join(t.TempDir(), "dead.db"))
	// One answer may take longer than the client's second: the request is repeated, and refused again.
	refusing, hanging, fine := newReceiver(t, slices.Repeat([]int{400}, 20)...), make(chan struct{}), newReceiver(t)
	var hung atomic.Int64
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if hung.Add(1) == 1 {
			<-hanging
		}
	}))
	t.Cleanup(slow.Close)
	t.Cleanup(func() { close(hanging) })
	logs := &logbuffer.Buffer{}
	serve(t, notify.Config{
		Store: letters.Store(), Client: &http.Client{Timeout: time.Second}, Logger: slog.New(slog.NewTextHandler(logs, nil)),
		Receivers: []notify.Receiver{
			{Name: "slow", URL: slow.URL, Secret: "x", On: []notify.NoticeKind{notify.NewCause}},
			refusing.hook("refusing"), fine.hook("fine"),
		},
	}, letters)
	begun(t, letters, 3)
	die(t, letters, "no such account", time.Now())
	posts := fine.await(t, 1)
	require.Eventually(t, func() bool { return hung.Load() >= 2 }, patience, 2*time.Millisecond, "a try that hangs ends")
	var dead []dlq.Entry
	require.Eventually(t, func() bool {
		list, err := letters.Store().List(t.Context(), dlq.Filter{Topic: notify.Topic("refusing")}, dlq.Page{})
		dead = list.Entries
		return err == nil && len(dead) > 0 // it may be notified of the first one's cause, and refuse that too
	}, patience, 5*time.Millisecond, "a refusal is a dead letter")
	require.Equal(t, envelope.ReasonPermanent, dead[0].Reason)
	require.Contains(t, dead[0].ErrorMessage, "status 400")
	s, _ := driver.As[driver.NoticeStore](letters.Store())
	require.Eventually(t, func() bool {
		had, err := s.Notices(t.Context(), time.Now().Add(-time.Hour))
		return err == nil && slices.ContainsFunc(had, func(n driver.Notice) bool {
			return n.Receiver == "refusing" && n.ID == posts[0].notice.ID
		})
	}, patience, 5*time.Millisecond, "it is not sent again after a restart")
	require.NotContains(t, dead[0].ErrorMessage+logs.String(), "/hook", "the URL may be a secret")
}

// putPublisher delivers at once, as the handler of another process does that shares the broker.
type putPublisher struct {
	t     *testing.T
	store driver.NoticeStore
	puts  atomic.Int64
}

func (p *putPublisher) Publish(_ string, messages ...*message.Message) error {
	for _, m := range messages {
		var notice wire.Notice
		require.NoError(p.t, json.Unmarshal(m.Payload, &notice))
		require.NoError(p.t, p.store.PutNotice(p.t.Context(), driver.Notice{Receiver: "ops", ID: notice.ID, At: time.Now()}))
		p.puts.Add(1)
	}
	return nil
}

func (p *putPublisher) Close() error { return nil }

// A process forgets the notices that it published and another one delivered: they piled up until it ended.
func TestNotifier_DeliveredElsewhere(t *testing.T) {
	t.Parallel()
	letters := open(t, filepath.Join(t.TempDir(), "dead.db"))
	s, _ := driver.As[driver.NoticeStore](letters.Store())
	require.NoError(t, s.PutNotice(t.Context(), driver.Notice{Receiver: "ops", At: time.Now().Add(-time.Minute)}))
	die(t, letters, "no such account", time.Now())
	publisher := &putPublisher{t: t, store: s}
	n, err := notify.New(notify.Config{
		Store: letters.Store(), Publisher: publisher, Logger: slog.New(slog.DiscardHandler),
		Receivers: []notify.Receiver{{Name: "ops", URL: "https://ops.example", Secret: "x"}},
	})
	require.NoError(t, err)
	require.NoError(t, n.Check(t.Context()))
	require.Equal(t, int64(1), publisher.puts.Load())
	require.Equal(t, 1, n.Outstanding())
	require.NoError(t, n.Check(t.Context()))
	require.Equal(t, int64(1), publisher.puts.Load())
	require.Zero(t, n.Outstanding())
}

// A muted cause is not reported until the mute ends.
func TestNotifier_Muted(t *testing.T) {
	t.Parallel()
	letters, ops := open(t, filepath.Join(t.TempDir(), "dead.db")), newReceiver(t)
	serve(t, notify.Config{Store: letters.Store(), Receivers: []notify.Receiver{ops.hook("ops")}}, letters)
	begun(t, letters, 1)
	manager, err := dlq.NewManager(dlq.ManagerConfig{Store: letters.Store(), Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	s, _ := driver.As[driver.NoticeStore](letters.Store())
	known := driver.Mute{Fingerprint: dlq.Fingerprint("charge", "", "", "known"), By: "ana", At: time.Now()}
	require.NoError(t, s.Mute(t.Context(), known)) // before its first one: no notice can come in between
	die(t, letters, "known", time.Now())
	die(t, letters, "unknown", time.Now())
	ops.await(t, 1)
	require.NoError(t, manager.Unmute(t.Context(), known.Fingerprint, dlq.By{Actor: "ana"}))
	ops.await(t, 2)
	require.Equal(t, []string{
		"New cause of dead letters: unknown (in charge)",
		"New cause of dead letters: known (in charge)",
	}, ops.texts())
}

// A notice contains what viewers see: no hidden text, one cause for all that look the same to them, and for Slack no
// markup from a message.
func TestNotifier_SendsOnlyWhatViewersSee(t *testing.T) {
	t.Parallel()
	letters, ops, slack := open(t, filepath.Join(t.TempDir(), "dead.db")), newReceiver(t), newReceiver(t)
	rules, err := redact.New(redact.Config{Texts: []string{`[a-z]+@[a-z]+`}})
	require.NoError(t, err)
	serve(t, notify.Config{
		Store: letters.Store(), Redaction: rules, PublicURL: "https://ops.example",
		Receivers: []notify.Receiver{ops.hook("ops"), {Name: "chat", URL: slack.URL + "/services/T0/B0/key", Format: notify.Slack}},
	}, letters)
	begun(t, letters, 2)
	fingerprint := die(t, letters, "<!channel> no account of ana@example", time.Now())
	first := ops.await(t, 1)[0]
	require.Contains(t, first.notice.Text, redact.Mask)
	require.NotContains(t, string(first.body), "ana@")
	require.NotContains(t, string(first.body), fingerprint, "the fingerprint of a hidden cause could be tried")
	chat := slack.await(t, 1)[0]
	require.Contains(t, string(chat.body), `{"text":`)
	var said struct{ Text string }
	require.NoError(t, json.Unmarshal(chat.body, &said))
	require.Contains(t, said.Text, "&lt;!channel&gt;")
	require.NotContains(t, said.Text, "<!")
	require.NotContains(t, said.Text, "ana@")
	require.Empty(t, chat.header.Get(notify.HeaderSignature))
	die(t, letters, "<!channel> no account of bob@example", time.Now()) // looks the same
	die(t, letters, "something else", time.Now())
	posts := ops.await(t, 2)
	require.Contains(t, posts[1].notice.Text, "something else")
}

// A cause with other hidden values is not new to people to whom the old one looks the same.
func TestNotifier_HiddenVariantIsNotNew(t *testing.T) {
	t.Parallel()
	letters, ops := open(t, filepath.Join(t.TempDir(), "dead.db")), newReceiver(t)
	rules, err := redact.New(redact.Config{Texts: []string{`[a-z]+@[a-z]+`}})
	require.NoError(t, err)
	die(t, letters, "no account of ana@example", time.Now().Add(-72*time.Hour))
	serve(t, notify.Config{
		Store: letters.Store(), Redaction: rules, Receivers: []notify.Receiver{ops.hook("ops")},
	}, letters)
	begun(t, letters, 1)
	die(t, letters, "no account of bob@example", time.Now())
	first := ops.await(t, 1)[0]
	require.Equal(t, "regressed_cause", first.notice.Kind, first.notice.Text)
	require.EqualValues(t, 2, first.notice.Cause.Counts.Pending)
}

// A receiver gets a bounded number of notices an hour.
func TestNotifier_Rate(t *testing.T) {
	t.Parallel()
	letters, few, all := open(t, filepath.Join(t.TempDir(), "dead.db")), newReceiver(t), newReceiver(t)
	bounded := few.hook("few")
	bounded.PerHour = 2
	serve(t, notify.Config{Store: letters.Store(), Receivers: []notify.Receiver{bounded, all.hook("all")}}, letters)
	begun(t, letters, 2)
	for _, text := range []string{"one", "two", "three", "four"} {
		die(t, letters, text, time.Now())
	}
	few.await(t, 2)
	all.await(t, 4) // the few come before them in each round
	die(t, letters, "five", time.Now())
	all.await(t, 5)
	require.Len(t, few.all(), 2)
}

// Messages can make any number of new causes: a run that waits for a person is not behind them in the next hour.
// Of more runs than may be sent, the oldest are sent, because they are the first to leave the window.
func TestNotifier_RunsBeforeCauses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		runs, want []string
	}{
		"one run": {[]string{"r1"}, []string{
			"Redrive run r1, started by ana, waits for approval of 0 messages", "New cause of dead letters: one (in charge)",
		}},
		"more runs than may be sent": {[]string{"r1", "r2", "r3", "r4"}, []string{
			"Redrive run r1, started by ana, waits for approval of 0 messages",
			"Redrive run r2, started by ana, waits for approval of 0 messages",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			letters, ops := open(t, filepath.Join(t.TempDir(), "dead.db")), newReceiver(t)
			hook := ops.hook("ops")
			hook.PerHour = 2
			s, _ := driver.As[driver.NoticeStore](letters.Store())
			require.NoError(t, s.PutNotice(t.Context(), driver.Notice{Receiver: "ops", At: time.Now().Add(-time.Hour)}))
			for i, text := range []string{"one", "two", "three"} {
				die(t, letters, text, time.Now().Add(time.Duration(i-9)*time.Minute))
			}
			for _, run := range tt.runs {
				start(t, letters, run, redrive.AwaitingApproval, "")
			}
			serve(t, notify.Config{Store: letters.Store(), Receivers: []notify.Receiver{hook}}, letters)
			ops.await(t, 2)
			require.ElementsMatch(t, tt.want, ops.texts())
		})
	}
}

// short is a store with short pages of runs.
type short struct {
	driver.NoticeStore
	redrive.Store
}

func (s short) Runs(ctx context.Context, f redrive.RunFilter, p dlq.Page) ([]redrive.Run, string, error) {
	p.Limit = 2
	return s.Store.Runs(ctx, f, p)
}

// Runs stay stopped until a person continues them: one that stops is reported, however many younger ones there are.
func TestNotifier_RunsOfAllPages(t *testing.T) {
	t.Parallel()
	letters, ops := open(t, filepath.Join(t.TempDir(), "dead.db")), newReceiver(t)
	notices, _ := driver.As[driver.NoticeStore](letters.Store())
	runs, _ := driver.As[redrive.Store](letters.Store())
	require.NoError(t, notices.PutNotice(t.Context(), driver.Notice{Receiver: "ops", At: time.Now().Add(-time.Hour)}))
	for i := range 5 {
		start(t, letters, fmt.Sprint("r", i), redrive.Stopped, "")
	}
	serve(t, notify.Config{Store: short{notices, runs}, Receivers: []notify.Receiver{ops.hook("ops")}}, letters)
	ops.await(t, 5)
}

// store is a store that answers unless it is down.
type store struct {
	driver.NoticeStore

	away atomic.Bool
	held atomic.Int64
}

func (s *store) HoldNotices(ctx context.Context, process string, at, until time.Time) (bool, error) {
	if s.away.Load() {
		return false, errors.New("the database is down: dial tcp 10.0.0.7:5432")
	}
	defer s.held.Add(1)
	return s.NoticeStore.HoldNotices(ctx, process, at, until)
}

// A store that does not answer is reported by the server whose turn it was, once each time, without the driver's error
// text.
func TestNotifier_StoreDown(t *testing.T) {
	t.Parallel()
	path, ops := filepath.Join(t.TempDir(), "dead.db"), newReceiver(t)
	var stores []*store
	for range 2 {
		letters := open(t, path)
		kept, _ := driver.As[driver.NoticeStore](letters.Store())
		s := &store{NoticeStore: kept}
		stores = append(stores, s)
		serve(t, notify.Config{Store: s, Receivers: []notify.Receiver{ops.hook("ops")}}, letters)
		begun(t, letters, 1)
	}
	for n := 1; n <= 2; n++ {
		for _, s := range stores {
			s.away.Store(true)
		}
		posts := ops.await(t, n)
		require.Equal(t, "store_down", posts[n-1].notice.Kind)
		require.NotContains(t, string(posts[n-1].body), "10.0.0.7")
		for _, s := range stores {
			s.held.Store(0)
			s.away.Store(false)
		}
		require.Eventually(t, func() bool { return stores[0].held.Load() > 0 && stores[1].held.Load() > 0 }, patience,
			2*time.Millisecond)
	}
	require.Len(t, ops.all(), 2)
	require.NotEqual(t, ops.all()[0].notice.ID, ops.all()[1].notice.ID)
}

// flakyPublisher refuses the first notice that the store is down, and has the kinds of the others.
type flakyPublisher struct {
	refused bool
	kinds   []string
}

func (p *flakyPublisher) Publish(_ string, messages ...*message.Message) error {
	var notice wire.Notice
	if err := json.Unmarshal(messages[0].Payload, &notice); err != nil {
		return err
	}
	if notice.Kind == string(notify.StoreDown) && !p.refused {
		p.refused = true
		return errors.New("the broker is down, too")
	}
	p.kinds = append(p.kinds, notice.Kind)
	return nil
}

func (p *flakyPublisher) Close() error { return nil }

// That the store is down reaches a receiver which has had its notices of this hour, once per outage, although it could
// not be published at first. Outages have an hourly limit too.
func TestNotifier_StoreDownIsNotLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		letters := open(t, filepath.Join(t.TempDir(), "dead.db"))
		kept, _ := driver.As[driver.NoticeStore](letters.Store())
		s, publisher := &store{NoticeStore: kept}, &flakyPublisher{}
		n, err := notify.New(notify.Config{
			Store: s, Publisher: publisher, Logger: slog.New(slog.DiscardHandler),
			Receivers: []notify.Receiver{{Name: "ops", URL: "https://ops.example", Secret: "x", PerHour: 1}},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = n.Run(ctx) })
		synctest.Wait()
		die(t, letters, "no such account", time.Now())
		for _, step := range []struct {
			away bool
			wait time.Duration
			had  int
		}{
			{false, time.Minute, 1},
			{true, 10 * time.Minute, 2},
			{false, time.Minute, 2},
			{true, 10 * time.Minute, 2},
			{true, time.Hour, 3},
		} {
			s.away.Store(step.away)
			time.Sleep(step.wait) // virtual
			synctest.Wait()
			require.Len(t, publisher.kinds, step.had, "%+v", step)
		}
		cancel()
		running.Wait()
		require.Equal(t, []string{"new_cause", "store_down", "store_down"}, publisher.kinds)
	})
}

// Only https URLs, and http ones of this machine, are allowed, and an error shows neither URL nor secret.
func TestReceiver_Validate(t *testing.T) {
	t.Parallel()
	for url, fine := range map[string]bool{
		"https://hooks.example/s3cret": true, "http://127.0.0.1:8080/s3cret": true, "http://localhost/s3cret": true,
		"http://[::1]:1/s3cret":       true,
		"http://hooks.example/s3cret": false, "http://10.0.0.7/s3cret": false, "http://169.254.169.254/s3cret": false,
		"file:///s3cret":  false,
		"https:///s3cret": false, "gopher://127.0.0.1/s3cret": false,
		"https://u:s3cret@hooks.example": false, "http://127.0.0.1.evil.example/s3cret": false,
		"https://hooks.example/%zz s3cret": false, "": false,
	} {
		err := (&notify.Receiver{Name: "ops", URL: url, Format: notify.Slack}).Validate()
		require.Equal(t, fine, err == nil, "%s: %v", url, err)
		if err != nil {
			require.NotContains(t, err.Error(), "s3cret")
		}
	}
	for _, r := range []notify.Receiver{
		{URL: "https://a.example", Format: notify.Slack},
		{Name: "a", URL: "https://a.example"},
		{Name: "a", URL: "https://a.example", Secret: "whsec_%"},
		{Name: "a", URL: "https://a.example", Format: notify.Slack, On: []notify.NoticeKind{"x"}},
		{Name: "a", URL: "https://a.example", Format: notify.Slack, PerHour: -1},
		{Name: strings.Repeat("a", 101), URL: "https://a.example", Format: notify.Slack},
	} {
		require.Error(t, r.Validate(), "%+v", r)
	}
	_, err := notify.New(notify.Config{})
	for _, missing := range []string{"Store", "Publisher", "Receivers"} {
		require.ErrorContains(t, err, missing)
	}
}

// A redirect is not followed: it is not a success.
func TestNotifier_NoRedirects(t *testing.T) {
	t.Parallel()
	letters, ops := open(t, filepath.Join(t.TempDir(), "dead.db")), newReceiver(t, http.StatusTemporaryRedirect)
	broker, err := memory.New(brokers.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = broker.Close() })
	n, err := notify.New(notify.Config{
		Store: letters.Store(), Publisher: broker.Publisher(),
		Receivers: []notify.Receiver{ops.hook("ops")},
	})
	require.NoError(t, err)
	err = n.Deliver(t.Context(), "ops", []byte(`{"id":"1"}`))
	status, ok := errors.AsType[*notify.StatusError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, http.StatusTemporaryRedirect, status.HTTPStatusCode())
}
