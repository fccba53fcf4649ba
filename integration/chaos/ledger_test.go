package chaos_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// The steps of a message in the log.
const (
	begun   = "begun"   // a handler runs
	failed  = "failed"  // and is about to return an error
	handled = "handled" // and is about to return nil
)

// book is a log file to which all workers append. A line is one write, so a kill leaves no partial line.
type book struct{ file *os.File }

func openBook(path string) (*book, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	return &book{file}, err
}

func (b *book) write(step, id string, attempt int) {
	if _, err := fmt.Fprintf(b.file, "%d %s %s %d\n", time.Now().UnixNano(), step, id, attempt); err != nil {
		panic(err) // the test cannot run without the log
	}
}

// account is everything known about one message.
type account struct {
	plan      plan
	published time.Time // just before Publish
	confirmed bool      // Publish returned nil
	deleted   bool      // an operator may have deleted it before it was settled

	runs    int
	handled int
	dead    int
	headers string            // of the dead letter
	failed  map[int]time.Time // by attempt, the first run of each
	early   time.Duration     // the most time by which it was early
}

// settled reports whether the message was handled or dead-lettered as planned.
func (a *account) settled() bool { return a.handled > 0 || a.dead > 0 }

// ledger is the account of all messages. It is safe for concurrent use.
type ledger struct {
	mu       sync.Mutex
	accounts map[string]*account
	read     int64 // bytes of the log read so far
	passed   int   // messages confirmed
	runs     int   // calls of handlers
	opened   time.Time
	wall     time.Time     // the same, by the wall clock alone
	behind   time.Duration // how far the wall clock was set since, at least
	ahead    time.Duration // and at most
	last     time.Time     // when a handler was last called
	down     []span        // when the broker was unreachable, or no worker ran
	standing span          // the longest time without a handler call while all ran and messages waited
	strange  []string      // lines about messages that were never published
}

type span struct{ from, to time.Time }

func (s span) length() time.Duration { return s.to.Sub(s.from) }

func newLedger() *ledger {
	now := time.Now()
	return &ledger{accounts: map[string]*account{}, opened: now, wall: now.Round(0), last: now}
}

// watch records when the wall clock is set, for example by NTP: the workers record handler calls with it, while a
// broker may measure delays with a monotonic clock.
func (l *ledger) watch(now time.Time) {
	set := now.Round(0).Sub(l.wall) - now.Sub(l.opened)
	l.behind, l.ahead = min(l.behind, set), max(l.ahead, set)
}

func (l *ledger) publishing(p plan) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.accounts[p.ID] = &account{plan: p, published: time.Now(), failed: map[int]time.Time{}}
}

// deleted excuses every message that is not settled, because an operator may have deleted it.
func (l *ledger) deleted() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.accounts {
		a.deleted = a.deleted || !a.settled()
	}
}

func (l *ledger) confirmed(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.accounts[id].confirmed = true
	l.passed++
}

func (l *ledger) dead(id, headers string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.accounts[id]; a != nil {
		a.dead++
		a.headers = headers
	} else {
		l.strange = append(l.strange, "dead: "+id)
	}
}

// unavailable records that a standstill is not an error from now until the returned function is called.
func (l *ledger) unavailable() (over func()) {
	from := time.Now()
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.down = append(l.down, span{from, time.Now()})
	}
}

// update reads the new lines of the log.
func (l *ledger) update(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watch(time.Now())
	if _, err := file.Seek(l.read, 0); err != nil {
		return err
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return err
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	l.read += int64(len(text))
	for line := range bytes.Lines(text) {
		var (
			nanos   int64
			step    string
			id      string
			attempt int
		)
		if _, err := fmt.Sscan(string(line), &nanos, &step, &id, &attempt); err != nil {
			return fmt.Errorf("line %q of the log: %w", line, err)
		}
		l.enter(time.Unix(0, nanos), step, id, attempt)
	}
	return nil
}

func (l *ledger) enter(at time.Time, step, id string, attempt int) {
	a := l.accounts[id]
	if a == nil {
		l.strange = append(l.strange, step+": "+id)
		return
	}
	switch step {
	case begun:
		a.runs++
		l.runs++
		l.standstill(at)
		due := a.published.Add(a.plan.Delay)
		if attempt > 1 {
			due = a.failed[attempt-1].Add(backoff)
		}
		a.early = max(a.early, due.Sub(at))
	case failed:
		if _, again := a.failed[attempt]; !again {
			a.failed[attempt] = at
		}
	case handled:
		a.handled++
	}
}

// standstill measures the time between two handler calls. The time from the beginning of a fault until a while after
// its end does not count.
func (l *ledger) standstill(at time.Time) {
	from := l.last
	if at.After(l.last) {
		l.last = at
	}
	for _, d := range l.down {
		if d.from.Before(at) && d.to.After(from) {
			from = d.to
		}
	}
	if s := (span{from, at}); s.length() > l.standing.length() {
		l.standing = s
	}
}

// progress returns how many messages were confirmed, and how often handlers were called.
func (l *ledger) progress() (confirmed, runs int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.passed, l.runs
}

// bytes returns how much of the log has been read.
func (l *ledger) bytes() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.read
}

// open returns how many confirmed messages are not settled.
func (l *ledger) open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, a := range l.accounts {
		if a.confirmed && !a.deleted && !a.settled() {
			n++
		}
	}
	return n
}

// verdict is the result of a ledger.
type verdict struct {
	published, handled, dead int
	lost                     []string // confirmed, but neither handled nor dead-lettered
	wronglyDead              []string // dead-lettered, but not refused by a handler
	wronglyHandled           []string // handled and dead-lettered
	early                    []string // handled before it was due
	duplicates               int      // handled again
	deleted                  int      // at most, by an operator
	standstill               time.Duration
}

func (l *ledger) verdict() verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := verdict{standstill: l.standing.length()}
	for id, a := range l.accounts {
		if a.confirmed {
			v.published++
		}
		v.handled += min(a.handled, 1)
		v.dead += min(a.dead, 1)
		v.duplicates += max(a.handled-1, 0)
		name := fmt.Sprintf("%s (%s, %d runs, handled %d times, dead %d times)", id, a.plan.Kind, a.runs, a.handled, a.dead)
		switch {
		case a.deleted && !a.settled():
			v.deleted++
		case a.confirmed && !a.settled():
			v.lost = append(v.lost, name)
		case a.dead > 0 && !a.plan.dies():
			v.wronglyDead = append(v.wronglyDead, name+": "+a.headers)
		}
		if a.dead > 0 && a.handled > 0 {
			v.wronglyHandled = append(v.wronglyHandled, name)
		}
		if a.early > l.ahead-l.behind {
			v.early = append(v.early, fmt.Sprintf("%s by %s", name, a.early))
		}
	}
	return v
}

func (v verdict) String() string {
	return fmt.Sprintf("%d published, %d handled, %d dead; %d lost, %d wrongly dead, %d handled and dead, %d early; "+
		"%d deleted, %d handled again, longest standstill %s",
		v.published, v.handled, v.dead, len(v.lost), len(v.wronglyDead), len(v.wronglyHandled), len(v.early), v.deleted,
		v.duplicates,
		v.standstill.Round(time.Millisecond))
}
