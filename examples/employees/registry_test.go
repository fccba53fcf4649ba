package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Deliveries are at least once and retries change the order, so the registry keeps the latest version.
func TestRegistry_LatestVersionWins(t *testing.T) {
	r := newRegistry()
	hired := Employee{ID: "E1", Version: 1}
	raised := Employee{ID: "E1", Version: 2, SalaryCents: 500_000}
	gone := Employee{ID: "E1", Version: 3, SalaryCents: 500_000, DismissedOn: "2026-01-31"}
	for _, e := range []Employee{hired, gone, raised, gone, hired} {
		require.NoError(t, r.save(t.Context(), e))
	}
	require.Equal(t, gone, r.employees["E1"])
	require.Zero(t, r.headcount())
}
