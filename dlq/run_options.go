package dlq

import (
	"maps"
	"slices"
	"time"

	"github.com/redrive-go/redrive/envelope"
)

// WithTargets names the other destinations to which a run may send messages (RunSpec.Target): an operator chooses a name, never an
// address. Defaults to none: messages go where they came from.
func WithTargets(targets map[string]envelope.Origin) ManagerOption {
	return func(m *Manager) { m.targets = maps.Clone(targets) }
}

// Targets lists the names of [WithTargets], sorted.
func (m *Manager) Targets() []string { return slices.Sorted(maps.Keys(m.targets)) }

// CanRedrive reports whether the Manager has a Redriver: without one it refuses every redrive.
func (m *Manager) CanRedrive() bool { return m.redriver != nil }

// WithApproval makes a run over more than so many entries wait for a second person (C46), who may not be the one that asked for it;
// 0 is every run. Runs that edit or go to another target wait whatever their size. Defaults to no approval.
func WithApproval(above int64) ManagerOption { return func(m *Manager) { m.approvalAbove = above } }

// WithRunLease sets how long a run stays with a process that does not renew its lease: after that another one carries it on. Defaults
// to 30 s.
func WithRunLease(d time.Duration) ManagerOption { return func(m *Manager) { m.runLease = d } }

// WithWorkInterval sets how often [Manager.Work] looks for runs of other processes. Defaults to 1 s.
func WithWorkInterval(d time.Duration) ManagerOption { return func(m *Manager) { m.workEvery = d } }

// WithBatch sets how many entries a run claims in one transaction at most, and how many of them are published at once when the
// Redriver is no [BatchRedriver]. Defaults to 1,000, which is [MaxPage] and the most, and 256. A run begins with 250, takes more while
// the broker confirms a batch within 250 ms, and fewer when that takes more than a second.
func WithBatch(size, publishers int) ManagerOption {
	return func(m *Manager) { m.batch, m.publishers = size, publishers }
}
