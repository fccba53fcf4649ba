package redrive

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/redrive-go/redrive/dlq"
)

// Spec is what a redrive run is to do. The zero value of everything but Filter is a careful default.
type Spec struct {
	// ID makes starting idempotent: a second run with it is refused with [dlq.ErrConflict]. 1 to 64 letters, digits,
	// '-', '_' or '.'. Defaults to a new UUIDv7.
	ID string `json:"id,omitzero"`
	// Filter picks the entries, by group (Fingerprint) for example, or by IDs. Statuses defaults to PENDING; PARKED
	// entries are taken only when it names them. RESOLVED and DISCARDED ones never are: restore them first.
	Filter dlq.Filter `json:"filter"`
	// Limit is at most how many entries, the oldest first. 0 takes all.
	Limit int64 `json:"limit,omitzero"`
	// Rate is at most how many messages a second. 0 is as fast as it goes.
	Rate float64 `json:"rate,omitzero"`
	// MaxOut is at most how many messages are out without an outcome, so that a stop comes before everything is out.
	// Defaults to 10,000; negative is not a bound.
	MaxOut int `json:"max_out,omitzero"`
	// Canary are the sizes of first steps, {1, 10, 100} for example. The run waits for every outcome of a step before
	// the next, and stops when the share of failures in it is above Stop.Share, however small the step is:
	// Stop.MinSample does not apply to a whole step, only to the outcomes before its end. Each step is judged by its
	// own outcomes. Empty begins at once.
	Canary []int `json:"canary,omitzero"`
	// Stop is when the run stops on its own.
	Stop StopRule `json:"stop,omitzero"`
	// JQ is a jq expression that each payload goes through before it is redriven; the original is kept as a revision.
	// Payloads that are not JSON, or for which it fails, are skipped. Look at it with [Runner.PreviewRun] first.
	JQ string `json:"jq,omitzero"`
	// Target is the name of another destination, one of [Config.Targets]. Empty is where the message came from.
	Target string `json:"target,omitzero"`
	// CloseOnPublish closes an entry when the broker has confirmed the message: for consumers that do not report their
	// outcome, such as those of other systems. Always so with a Target: there, a message that dies is a new entry.
	CloseOnPublish bool `json:"close_on_publish,omitzero"`
	// OutcomeTimeout is how long an outcome may take, retries and their delays included. Defaults to the Runner's (1
	// h).
	OutcomeTimeout time.Duration `json:"outcome_timeout,omitzero"`
	// Paused makes the run but does not begin: resume it.
	Paused bool `json:"paused,omitzero"`
}

// StopRule is how many failures are too many. A message whose outcome did not come in time counts as one.
type StopRule struct {
	// Share is the share of failures, from 0 to 1, above which the run stops. Defaults to 0.1; 1 never stops.
	Share float64 `json:"share,omitzero"`
	// MinSample is how many outcomes are needed to judge. Defaults to 20.
	MinSample int `json:"min_sample,omitzero"`
}

const (
	defaultMaxOut    = 10_000
	defaultStopShare = 0.1
	defaultMinSample = 20
	maxRunIDs        = 100_000
)

var runID = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// Resolve fills the defaults in, and reports everything that is wrong as [dlq.ErrInvalid].
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
