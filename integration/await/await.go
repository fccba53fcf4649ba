// Package await waits in tests of real servers. A deadline that is right on one machine is wrong on a busier one, so a
// test waits as long as there is progress, and fails if nothing has changed for [Patience]. For values from a channel,
// use a select with time.After(await.Patience), which starts over with each value.
package await

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

// Patience is how long nothing may change before a test fails. A test that passes never waits that long.
const Patience = 2 * time.Minute

// The intervals between calls grow while nothing changes.
const (
	firstLook = time.Millisecond
	lastLook  = 20 * time.Millisecond
)

// Progress calls look until it reports that it is done, and fails the test if its result does not change for
// [Patience]. It calls look in the goroutine of the test, so look may use require.
func Progress[T comparable](t testing.TB, look func() (far T, done bool), msgAndArgs ...any) {
	t.Helper()
	if last, ok := progress(look); !ok {
		t.Logf("nothing has changed for %s; the last value is %v", Patience, last)
		require.FailNow(t, "the condition was never met", msgAndArgs...)
	}
}

func progress[T comparable](look func() (far T, done bool)) (last T, ok bool) {
	last, done := look()
	changed, wait := time.Now(), firstLook
	for !done {
		if time.Since(changed) > Patience {
			return last, false
		}
		<-time.After(wait) // real time: the one pause between two looks at a real server
		wait = min(2*wait, lastLook)
		var far T
		if far, done = look(); far != last {
			last, changed, wait = far, time.Now(), firstLook
		}
	}
	return last, true
}

// True waits until holds returns true. A boolean shows no progress, so that must happen within [Patience].
func True(t testing.TB, holds func() bool, msgAndArgs ...any) {
	t.Helper()
	Progress(t, func() (bool, bool) { done := holds(); return done, done }, msgAndArgs...)
}

// Count waits until count returns want or more, for as long as it changes.
func Count(t testing.TB, want int, count func() int, msgAndArgs ...any) {
	t.Helper()
	Progress(t, func() (int, bool) { n := count(); return n, n >= want }, msgAndArgs...)
}

// None waits until count returns zero, for as long as it changes.
func None(t testing.TB, count func() int, msgAndArgs ...any) {
	t.Helper()
	Progress(t, func() (int, bool) { n := count(); return n, n == 0 }, msgAndArgs...)
}

// Run runs router until ctx ends, and returns when its handlers have subscribed. ended receives the result of the run,
// and is closed. If it ends before that, the test fails.
func Run(ctx context.Context, t testing.TB, router *message.Router) (ended <-chan error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { defer close(done); done <- router.Run(ctx) }()
	select {
	case <-router.Running():
	case err := <-done:
		require.NoError(t, errors.Join(errors.New("the router did not start"), err))
	}
	return done
}
