package brokertest

import (
	"cmp"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/redrive-go/redrive/brokers"
)

// Harness describes how the suite reaches a broker.
type Harness struct {
	// Backend prepares the place shared by the brokers of one case: a server, or the memory of this process. Required. It
	// is called once per run of a case, within the case's synctest bubble if Virtual.
	Backend func(t *testing.T) Backend

	// Alone prepares a place that no other broker of the process uses, for the cases that erase more than their topics.
	// Defaults to Backend.
	Alone func(t *testing.T) Backend

	// Virtual runs every case in a synctest bubble, for brokers without real I/O. Schedules must then be exact.
	Virtual bool
	// Factor scales the timelines, to shorten the waits on a real broker: with 0.05, ten seconds take half a second.
	// Defaults to 1. Virtual time is never scaled.
	Factor float64
	// Late is how late a message may be, in addition to Capabilities.DelayTolerance, on a busy machine. A case that is
	// late runs again: a machine may be busy once, a faulty broker is late each time. Defaults to 500 ms. In virtual time
	// nothing is late.
	Late time.Duration
	// Wait bounds the wait for anything that must happen, from the last progress. Defaults to 2 minutes.
	Wait time.Duration
	// Quiet is how long the suite checks that nothing more happens, and six times as long that it does not happen too
	// often. Defaults to 500 ms.
	Quiet time.Duration
	// Volume is the number of messages of the cases that need many. Defaults to 1000.
	Volume int
	// Sequential runs one case at a time, for servers that cannot handle more.
	Sequential bool
	// Parts is how many subscriptions of one group can receive messages of a topic at once, if topics are partitioned: the
	// others receive nothing. 0 means any number.
	Parts int

	// Watermill are the features for Watermill's own suite, pubsub/tests. If nil, that suite is left out.
	Watermill *tests.Features
	// TopicsApart gives each topic of Watermill's own suite a group. It is for brokers on which the members of a group
	// wait for each other whatever their topics: the suite subscribes to two, and reads the second after the first.
	TopicsApart bool
	// Except skips cases by name, each with the reason that the broker cannot pass it.
	Except map[string]string
}

// Backend is the place shared by the brokers of one case.
type Backend struct {
	// Open opens a broker on the backend with the settings of cfg, after adding its URL. Brokers opened on one Backend
	// share its queues, as processes do. It is called from several goroutines. Required.
	Open func(cfg brokers.Config) (brokers.Broker, error)
	// Read takes n messages out of a queue by its name with a plain client. It returns fewer if there are no more. If nil,
	// the suite subscribes to the name as to a topic.
	Read func(t *testing.T, queue string, n int) []*message.Message
	// Lock locks the stored message with that id, as an operator's open session that inspects it does, and returns the
	// function that ends it. Nil if a message cannot be locked.
	Lock func(t *testing.T, id string) (unlock func())
	// Delete removes the stored message with that id, even while it runs. Nil if a message cannot be removed while a
	// consumer has it.
	Delete func(t *testing.T, id string)
	// Erase removes everything the broker keeps of topic and the consumers of its default group, whose names are n, with
	// all messages, as an operator does with the server's own tools. Nil if there is nothing to remove.
	Erase func(t *testing.T, topic string, n brokers.Names)
}

func (h *Harness) setDefaults() {
	if h.Factor == 0 || h.Virtual {
		h.Factor = 1
	}
	h.Late = cmp.Or(h.Late, 500*time.Millisecond)
	h.Wait = cmp.Or(h.Wait, 2*time.Minute)
	h.Quiet = cmp.Or(h.Quiet, 500*time.Millisecond)
	h.Volume = cmp.Or(h.Volume, 1000)
}

// Run runs the suite as subtests of t, named after what they show.
func Run(t *testing.T, h Harness) {
	t.Helper()
	if h.Backend == nil {
		t.Fatal("brokertest: Harness.Backend is required")
	}
	h.setDefaults()
	for name := range h.Except {
		known := slices.ContainsFunc(cases, func(c testCase) bool { return c.name == name })
		if name != watermillSuite && name != goroutineCase && !known {
			t.Fatalf("brokertest: Harness.Except names the unknown case %q", name)
		}
	}

	// First, while no other case of ours has goroutines.
	t.Run(goroutineCase, func(t *testing.T) {
		h.skipExcepted(t, goroutineCase)
		noGoroutineIsLeft(t, h)
	})
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h.skipExcepted(t, c.name)
			if h.Virtual {
				synctest.Test(t, func(t *testing.T) { c.run(newWorld(t, h)) })
				return
			}
			if !h.Sequential {
				t.Parallel()
			}
			runInTime(t, h, c)
		})
	}
	if h.Watermill != nil {
		t.Run(watermillSuite, func(t *testing.T) {
			h.skipExcepted(t, watermillSuite)
			watermillsOwnSuite(t, h)
		})
	}
}

// lateRuns is how often a case may be late before it fails.
const lateRuns = 5

// runInTime runs a case, and repeats it if it was late, each time with timelines twice as long: a busy machine gets the
// time it needs, and a fault stays late.
func runInTime(t *testing.T, h Harness, c testCase) {
	t.Helper()
	w := newWorld(t, h)
	c.run(w)
	for n := 1; w.late != "" && !t.Failed(); n++ {
		if n == lateRuns {
			t.Fatalf("late in each of %d runs: %s", n, w.late)
		}
		t.Logf("run again, because it was late: %s", w.late)
		h.Factor *= 2
		t.Run("again "+strconv.Itoa(n), func(t *testing.T) {
			w = newWorld(t, h)
			c.run(w)
		})
	}
}

func (h *Harness) skipExcepted(t *testing.T, name string) {
	t.Helper()
	if reason, ok := h.Except[name]; ok {
		t.Skipf("the harness excepts this case: %s", reason)
	}
}

type testCase struct {
	name string
	run  func(w *world)
}

// cases are run in this order. Each is in the file of its subject.
var cases = []testCase{
	// timelines.go
	{"TimelineA_FiveRunsThenDead", timelineA},
	{"TimelineB_RetriesDoubleFromTheOriginalDelay", timelineB},
	{"TimelineD_ThreeTries", timelineD3},
	{"TimelineD_FiveTries", timelineD5},
	{"TimelineE_CyclesThenLimbo", timelineE},
	// delays.go
	{"FirstDeliveryDelay_IsKeptApartFromTheRetryDelay", firstDeliveryDelayApart},
	{"FirstDeliveryDelay_OfWatermillIsHonoured", watermillDelay},
	{"Delays_AShortOneOvertakesALongOne", shortOvertakesLong},
	{"Delays_OfAnyLengthAreKept", oddDelays},
	{"Delays_BeyondTheLimitAreRefused", delayBeyondLimit},
	{"Delays_ZeroAndNegativeMeanNow", delayZero},
	// depths.go
	{"Depths_CountWhatWaits", depthsCountWhatWaits},
	{"Depths_CountWhatNobodyTakes", depthsCountWhatNobodyTakes},
	// isolation.go
	{"Groups_EachSeeEveryMessageOnce", groupsSeeEverything},
	{"Retry_ReturnsOnlyToTheConsumerThatFailed", retryReturnsToConsumer},
	{"Redrive_ReachesOnlyTheConsumerThatFailed", redriveReachesConsumer},
	{"Origin_NamesTheConsumer", originIsFilled},
	// redrive.go
	{"Redrive_ToAMissingConsumerIsRefused", redriveToAMissingConsumer},
	{"Redrive_GoesWhereTheConsumersNamingSays", redriveByAnotherNaming},
	{"Redrive_ReadersAreCounted", redriveReaders},
	{"Publish_ToAMissingTopicThatMustExistIsRefused", publishToAMissingTopic},
	// readers.go
	{"Subscribe_TwoPatternsOfOneServiceAreRefused", twoPatternsOfOneService},
	{"Subscribe_TwoGroupsOnOneQueueAreRefused", twoGroupsWithoutAGroupInTheName},
	{"Subscribe_TwoHandlersWithoutAGroupAreRefused", twoHandlersWithoutAGroup},
	{"Subscribe_ToAPatternWhereThereAreNoneIsRefused", patternsWhereThereAreNone},
	// patterns.go
	{"Patterns_SelectEventsAndRetriesKeepTheirName", patternsSelectEvents},
	{"Patterns_SystemEventsReachEveryService", systemEventsReachEveryService},
	{"Publish_OfAnEventWithoutASubscriberIsNoError", eventWithoutASubscriber},
	// fidelity.go
	{"Payloads_SurviveRetryAndDeadLetter", payloadsSurvive},
	{"Headers_SurviveRetryAndDeadLetter", headersSurvive},
	{"Headers_OfAnyBytesSurvive", rawHeadersSurvive},
	{"MessageID_IsStableOverRetries", messageIDStable},
	{"DeadLetters_SayWhereTheyCameFrom", deadLettersSayOrigin},
	{"ErrorText_OfAnySizeIsDeadLettered", hugeErrorText},
	// publishing.go
	{"Publish_CopiesItsMessages", publishCopies},
	{"Publish_IsSafeForConcurrentUse", publishConcurrently},
	{"Publish_WithoutAConsumerKeepsOrRefuses", publishToNobody},
	{"Publish_OfATooLargeMessageIsRefused", publishTooLarge},
	{"Publish_OfNothingIsFine", publishNothing},
	// largest.go
	{"Largest_PayloadIsRetriedAndDead", largestPayload},
	{"Largest_HeadersAreRetriedAndDead", largestHeaders},
	{"Largest_IsDeadWhereAReaderCameFirst", largestWithAnEarlyReader},
	{"Largest_WithoutRoomForARetryIsDead", largestWithoutRoom},
	// operator.go
	{"Operator_LocksOneMessageAndOthersGoOn", lockedMessage},
	{"Operator_DeletesWhatRunsAndNothingStops", deletedMessage},
	// erased.go
	{"Operator_ErasesWhatRunningHandlersCameFrom", erasedWhileHandlersRun},
	{"Operator_ErasesWhatOneAtATimeIsReadFrom", erasedWithOneAtATime},
	{"Operator_ErasesWherePacedMessagesCameFrom", erasedWhileMessagesArePaced},
	{"Operator_ErasesWhileRetriesArePublished", erasedWhileRetriesArePublished},
	{"Operator_ErasesAndAnotherProcessMakesAgain", erasedAndMadeAgain},
	{"Operator_ErasesAndPositionsBeginAnew", erasedAndPositionsBeginAnew},
	// produced.go
	{"Produced_WhatCannotBePublishedIsAFailedAttempt", producedUnpublishable},
	{"Produced_CopiesBeginWithTheirFirstAttempt", producedCopies},
	// hostile.go
	{"HostileHeaders_EndInTheDeadLetters", hostileHeaders},
	{"MalformedEnvelopes_AreDeadWithTheirBytes", malformedEnvelopes},
	// concurrency.go
	{"Concurrency_RunsThatManyHandlersAtOnce", concurrentHandlers},
	{"Concurrency_OneKeepsTheOrder", orderKept},
	// pressure.go
	{"Poison_DoesNotStopTheMessagesBehindIt", poisonDoesNotBlock},
	{"Nack_IsPaced", nackIsPaced},
	{"RetryThatCannotBePublished_DoesNotSpin", failingRescheduleDoesNotSpin},
	{"DeadLetterThatCannotBePublished_IsNotLost", failingDeadLetterIsNotLost},
	{"ManyWaitingRetries_AllComeBack", manyWaiting},
	{"LargeBatch_IsProcessedOrDead", largeBatch},
	// shutdown.go
	{"Shutdown_HandlersFinishAndTheirResultsArePublished", drainFinishesHandlers},
	{"Shutdown_ResultsArePublishedByAPublisherThatHandlersShare", sharedPublisher},
	{"Shutdown_ByTheContextOfRunDrainsToo", drainByContext},
	{"Shutdown_GivesBackWithoutAnAttempt", giveBackAtShutdown},
	{"Shutdown_KeepsWaitingRetries", closeWhileWaiting},
	{"Close_TwiceIsFine", closeTwice},
	{"Close_RefusesFurtherWork", closedRefuses},
	{"Close_OfAHandleLeavesTheBrokerOpen", handlesAreIndependent},
}
