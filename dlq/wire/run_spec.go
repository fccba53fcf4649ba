package wire

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
)

// RunSpec specifies a redrive run. The zero value of everything but Filter is a careful default.
type RunSpec struct {
	ID string `json:"id,omitempty" pattern:"^[A-Za-z0-9_.-]{1,64}$" doc:"Makes starting idempotent: a second run with this id is refused. Defaults to a new UUID."`
	// Filter selects the entries, for example by group (Fingerprint), or by IDs. PARKED entries are only included when
	// Statuses names them.
	Filter Filter  `json:"filter" doc:"Which entries. Statuses default to PENDING; RESOLVED and DISCARDED entries must be restored first."`
	Limit  int64   `json:"limit,omitempty" minimum:"0" doc:"Maximum number of entries, the oldest first; 0 means all."`
	Rate   float64 `json:"rate,omitempty" minimum:"0" doc:"Maximum number of messages per second; 0 means no limit."`
	// MaxOut makes a stop come before everything is sent.
	MaxOut int `json:"max_out,omitempty" doc:"Maximum number of messages without an outcome. Defaults to 10,000; negative means no limit."`
	// Canary stops the run when the share of failures of a complete step exceeds Stop.Share, no matter how small the step:
	// Stop.MinSample only applies to outcomes before the step's end. Each step is judged by its own outcomes.
	Canary []int         `json:"canary,omitempty" nullable:"false" maxItems:"100" doc:"Sizes of first steps, each of which waits for its outcomes: 1, 10, 100."`
	Stop   StopCondition `json:"stop,omitzero" doc:"When it stops automatically."`
	// JQ skips payloads that are not JSON, or for which it fails. Try it with a preview first.
	JQ     string `json:"jq,omitempty" maxLength:"10000" doc:"A jq expression that edits each payload; the original is kept."`
	Target string `json:"target,omitempty" doc:"The name of another destination. Defaults to where the messages came from."`
	// CloseOnPublish is for consumers that do not report their outcome, such as those of other systems. It is always set
	// with a Target: a message that dies there is a new entry.
	CloseOnPublish bool    `json:"close_on_publish,omitempty" doc:"Close an entry when the broker confirms its message."`
	OutcomeTimeout Seconds `json:"outcome_timeout_seconds,omitempty" minimum:"0" maximum:"31536000" doc:"How long an outcome may take."`
	Paused         bool    `json:"paused,omitempty" doc:"Create the run without starting it."`
}

// StopCondition is how many failures are too many. A message without an outcome in time counts as a failure.
type StopCondition struct {
	Share     float64 `json:"share,omitempty" minimum:"0" maximum:"1" doc:"The share of failures above which the run stops. Defaults to 0.1; 1 never stops."`
	MinSample int     `json:"min_sample,omitempty" minimum:"0" doc:"How many outcomes are needed to judge. Defaults to 20."`
}

const (
	defaultMaxOut    = 10_000
	defaultStopShare = 0.1
	defaultMinSample = 20
	maxRunIDs        = 100_000
)

var runID = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// Resolve fills in the defaults, and reports every fault as [ErrInvalid].
func (s RunSpec) Resolve() (RunSpec, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if s.ID != "" && !runID.MatchString(s.ID) {
		bad("id %.80q: 1 to 64 letters, digits, '-', '_' or '.'", s.ID)
	}
	errs = append(errs, s.Filter.Validate())
	if len(s.Filter.IDs) > maxRunIDs {
		bad("%d ids in the filter: at most %d, use its other fields", len(s.Filter.IDs), maxRunIDs)
	}
	s.Filter.Statuses = slices.Clone(s.Filter.Statuses)
	if len(s.Filter.Statuses) == 0 {
		s.Filter.Statuses = []Status{Pending}
	}
	for _, status := range s.Filter.Statuses {
		if status == Resolved || status == Discarded {
			bad("%s entries cannot be redriven: restore them first", status)
		}
	}
	if s.Limit < 0 || s.Rate < 0 || s.Rate != s.Rate || s.OutcomeTimeout < 0 {
		bad("limit %d, rate %v, outcome timeout %s: must not be negative", s.Limit, s.Rate, s.OutcomeTimeout.Duration())
	}
	s.MaxOut = cmp.Or(s.MaxOut, defaultMaxOut)
	for _, step := range s.Canary {
		if step < 1 {
			bad("canary step %d: must be positive", step)
		}
	}
	s.Stop.Share = cmp.Or(s.Stop.Share, defaultStopShare)
	s.Stop.MinSample = cmp.Or(s.Stop.MinSample, defaultMinSample)
	if !(s.Stop.Share > 0 && s.Stop.Share <= 1) {
		bad("stop share %v: above 0 and at most 1", s.Stop.Share)
	}
	if s.Stop.MinSample < 0 {
		bad("stop sample %d: must be positive", s.Stop.MinSample)
	}
	s.CloseOnPublish = s.CloseOnPublish || s.Target != ""
	if err := errors.Join(errs...); err != nil {
		return s, fmt.Errorf("dlq: run: %w: %w", ErrInvalid, err)
	}
	return s, nil
}
