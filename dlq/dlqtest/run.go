// Package dlqtest is the conformance suite for stores of dead letters. A store of your own that passes [Run] works with
// the rest of package dlq.
package dlqtest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// Store is what the suite tests: a store of dead letters that also stores redrive runs.
type Store interface {
	dlq.Store
	redrive.Store
}

// Database is one database. Each call opens another store on it, as another process would; the suite closes them.
type Database func(t *testing.T) Store

// Run runs the suite. fresh is called for each test and returns an empty database.
func Run(t *testing.T, fresh func(t *testing.T) Database) {
	t.Helper()
	tests := []struct {
		name string
		run  func(w *world)
	}{
		{"ExactBytes", testExactBytes},
		{"HostileText", testHostileText},
		{"HostileEntry", testHostileEntry},
		{"HostileTime", testHostileTime},
		{"EveryField", testEveryField},
		{"PutTwiceIsOneEntry", testPutTwice},
		{"PutTwiceInOneCall", testPutTwiceInOneCall},
		{"SameDeliveryFromTwoProcesses", testTwoProcesses},
		{"ConcurrentPuts", testConcurrentPuts},
		{"PutRefusesInvalidLetters", testPutRefuses},
		{"Transitions", testTransitions},
		{"ResolvedByAnother", testResolvedBy},
		{"CompareAndSet", testCompareAndSet},
		{"VersionMustMatch", testVersion},
		{"ChangeManyAtOnce", testChangeMany},
		{"ChangeRefusesInvalidCalls", testChangeRefuses},
		{"SuccessClosesTheEntry", testSuccess},
		{"SecondDeathReopensTheEntry", testSecondDeath},
		{"ConfirmAfterDeath", testConfirmAfterDeath},
		{"ResentAfterItWasClosed", testResent},
		{"CopiedRedriveHeaders", testCopiedHeaders},
		{"ForgedRedriveNumber", testForgedNumber},
		{"ChangedBodyIsKept", testChangedBody},
		{"LateDeathKeepsEdit", testLateDeathKeepsEdit},
		{"LeaseExpires", testLease},
		{"ManualRelease", testManualRelease},
		{"AuditOfRun", testAuditOfRun},
		{"Filters", testFilters},
		{"SearchIgnoresAccents", testAccents},
		{"PayloadFields", testPayloadFields},
		{"FilterRefusesInvalidValues", testFilterRefuses},
		{"Paging", testPaging},
		{"PagingUnderInserts", testPagingUnderInserts},
		{"PagingSameInstant", testPagingSameInstant},
		{"ForgedCursor", testForgedCursor},
		{"Count", testCount},
		{"CountAgreesWithList", testCountAgrees},
		{"Groups", testGroups},
		{"GroupNewest", testGroupNewest},
		{"GroupFirst", testGroupFirst},
		{"Stats", testStats},
		{"Trend", testTrend},
		{"LateDeath", testLateDeath},
		{"DeathsByHour", testDeathsByHour},
		{"Recent", testRecent},
		{"StatsEqualRecount", testRecount},
		{"Services", testServices},
		{"Audit", testAudit},
		{"Purge", testPurge},
		{"PurgeRefusesInvalidCalls", testPurgeRefuses},
		{"Unarchive", testUnarchive},
		{"UnarchiveSameDelivery", testUnarchiveSameDelivery},
		{"UnarchiveRevisions", testUnarchiveRevisions},
		{"Retention", testRetention},
		{"IDsAreNotReused", testIDsNotReused},
		{"Revise", testRevise},
		{"Collected", testCollected},
		{"RedriveTo", testRedriveTo},
		{"Import", testImport},
		{"EveryColumn", testEveryColumn},
		{"RunResource", testRunResource},
		{"RunSameID", testRunSameID},
		{"RunLease", testRunLease},
		{"RunFreeze", testRunFreeze},
		{"RunNextItems", testRunNextItems},
		{"RunClaim", testRunClaim},
		{"RunClaimWithBody", testRunClaimWithBody},
		{"RunKnown", testRunKnown},
		{"RunLargePayload", testRunLargePayload},
		{"RunSteps", testRunSteps},
		{"RunClosePublished", testRunClosePublished},
		{"RunSettle", testRunSettle},
		{"RunEndedWithClaims", testRunEndedWithClaims},
		{"RunLateOutcome", func(w *world) { lateOutcome(w, false) }},
		{"RunLateOutcomeKnown", func(w *world) { lateOutcome(w, true) }},
		{"RunSplit", testSplitRun},
		{"Record", testRecord},
		{"Tokens", testTokens},
		{"Sessions", testSessions},
		{"Notices", testNotices},
		{"Mutes", testMutes},
		{"Ledger", testLedger},
		{"LedgerConcurrent", testLedgerConcurrent},
		{"LedgerRun", testLedgerRun},
		{"NotFound", testNotFound},
		{"CancelledContext", testCancelled},
		{"SurvivesReopen", testReopen},
		{"Close", testClose},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(newWorld(t, fresh(t)))
		})
	}
	t.Run("Transfer", func(t *testing.T) {
		t.Parallel()
		testTransfer(newWorld(t, fresh(t)), newWorld(t, fresh(t)))
	})
}

// world is the environment of one case: a database, a store on it, and the helpers of the suite.
type world struct {
	*testing.T
	Store

	db Database
}

func newWorld(t *testing.T, db Database) *world {
	t.Helper()
	w := &world{T: t, db: db}
	w.Store = w.open()
	return w
}

// open opens another store on the database, as another process would. It is closed when the case ends.
func (w *world) open() Store {
	w.Helper()
	s := w.db(w.T)
	w.Cleanup(func() { require.NoError(w, s.Close()) })
	return s
}

// on is the world with another store.
func (w *world) on(s Store) *world { return &world{w.T, s, w.db} }

// Run returns a redrive run; subtests are T's.
func (w *world) Run(ctx context.Context, id string) (*redrive.Run, error) {
	return w.Store.Run(ctx, id)
}
