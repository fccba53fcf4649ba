package redrive

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/wire"
)

// Spec specifies a redrive run. The zero value of everything but Filter is a careful default.
type Spec struct {
	// ID makes starting idempotent: a second run with it is refused with [dlq.ErrConflict]. 1 to 64 letters, digits, '-',
	// '_' or '.'. Defaults to a new UUIDv7.
	ID string `json:"id,omitzero"`
	// Filter selects the entries, for example by group (Fingerprint), or by IDs. Statuses defaults to PENDING; PARKED
	// entries are only included when it names them, RESOLVED and DISCARDED ones never: restore them first.
	Filter dlq.Filter `json:"filter"`
	// Limit is the maximum number of entries, the oldest first. 0 means all.
	Limit int64 `json:"limit,omitzero"`
	// Rate is the maximum number of messages per second. 0 means no limit.
	Rate float64 `json:"rate,omitzero"`
	// MaxOut is the maximum number of messages without an outcome, so that a stop comes before everything is sent.
	// Defaults to 10,000; negative means no limit.
	MaxOut int `json:"max_out,omitzero"`
	// Canary are the sizes of the first steps, for example {1, 10, 100}. The run waits for every outcome of a step before
	// the next, and stops when its share of failures exceeds Stop.Share, no matter how small the step: Stop.MinSample does
	// not apply to a complete step, only to outcomes before its end. Each step is judged by its own outcomes. If empty,
	// the run starts at full speed.
	Canary []int `json:"canary,omitzero"`
	// Stop is when the run stops automatically.
	Stop StopCondition `json:"stop,omitzero"`
	// JQ is a jq expression that edits each payload before it is redriven; the original is kept as a revision. Payloads
	// that are not JSON, or for which it fails, are skipped. Try it with [Runner.PreviewRun] first.
	JQ string `json:"jq,omitzero"`
	// Target is the name of another destination, one of [Config.Targets]. Empty means where the message came from.
	Target string `json:"target,omitzero"`
	// CloseOnPublish closes an entry when the broker has confirmed the message: for consumers that do not report their
	// outcome, such as those of other systems. Always set with a Target: a message that dies there is a new entry.
	CloseOnPublish bool `json:"close_on_publish,omitzero"`
	// OutcomeTimeout is how long an outcome may take, retries and their delays included. Defaults to the Runner's (1 h).
	OutcomeTimeout time.Duration `json:"outcome_timeout,omitzero"`
	// Paused creates the run without starting it: resume it.
	Paused bool `json:"paused,omitzero"`
}

// StopCondition is how many failures are too many. A message without an outcome in time counts as a failure.
type StopCondition = wire.StopCondition

const (
	defaultMaxOut    = 10_000
	defaultStopShare = 0.1
	defaultMinSample = 20
	maxRunIDs        = 100_000
)

var runID = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// Resolve fills in the defaults, and reports every fault as [dlq.ErrInvalid].
func (s Spec) Resolve() (Spec, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if s.ID != "" && !runID.MatchString(s.ID) {
		bad("id %.80q: 1 to 64 letters, digits, '-', '_' or '.'", s.ID)
	}
	errs = append(errs, s.Filter.Validate(), s.Filter.ValidateTexts())
	if len(s.Filter.IDs) > maxRunIDs {
		bad("%d ids in the filter: at most %d, use its other fields", len(s.Filter.IDs), maxRunIDs)
	}
	s.Filter.Statuses = slices.Clone(s.Filter.Statuses)
	if len(s.Filter.Statuses) == 0 {
		s.Filter.Statuses = []dlq.Status{dlq.Pending}
	}
	for _, status := range s.Filter.Statuses {
		if status == dlq.Resolved || status == dlq.Discarded {
			bad("%s entries cannot be redriven: restore them first", status)
		}
	}
	if s.Limit < 0 || s.Rate < 0 || s.Rate != s.Rate || s.OutcomeTimeout < 0 {
		bad("limit %d, rate %v, outcome timeout %s: must not be negative", s.Limit, s.Rate, s.OutcomeTimeout)
	}
	if s.MaxOut == 0 {
		s.MaxOut = defaultMaxOut
	}
	for _, step := range s.Canary {
		if step < 1 {
			bad("canary step %d: must be positive", step)
		}
	}
	if s.Stop.Share == 0 {
		s.Stop.Share = defaultStopShare
	}
	if !(s.Stop.Share > 0 && s.Stop.Share <= 1) {
		bad("stop share %v: above 0 and at most 1", s.Stop.Share)
	}
	if s.Stop.MinSample == 0 {
		s.Stop.MinSample = defaultMinSample
	}
	if s.Stop.MinSample < 0 {
		bad("stop sample %d: must be positive", s.Stop.MinSample)
	}
	s.CloseOnPublish = s.CloseOnPublish || s.Target != ""
	if err := errors.Join(errs...); err != nil {
		return s, fmt.Errorf("dlq: run: %w: %w", dlq.ErrInvalid, err)
	}
	return s, nil
}
