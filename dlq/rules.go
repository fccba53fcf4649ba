package dlq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-go/redrive/envelope"
)

// Rule redrives dead letters of technical causes by itself (C41): "connection refused, after a minute, then after two, three times".
// It takes PENDING entries only: what was PARKED, resolved or discarded is a person's.
type Rule struct {
	// Name is in the audit log as "rule <name>". Required, unique.
	Name string
	// Reason, ErrorClass, ErrorCode, Fingerprint, Handler, Topic and CauseText say which entries; see [Filter]. At least one is
	// required: a rule for everything would hide what is broken.
	Reason                             envelope.Reason
	ErrorClass, ErrorCode, Fingerprint string
	Handler, Topic, CauseText          string
	// After is how long after its last death an entry is redriven for the first time. Defaults to 1 min. It doubles with each
	// redrive, up to MaxAfter, which defaults to 1 h.
	After, MaxAfter time.Duration
	// Redrives is how often at most. Defaults to 3. An entry whose own budget is used up earlier is PARKED.
	Redrives int
	// Rate is at most how many messages a second. Defaults to 10.
	Rate float64
	// Stop says when a run of the rule stops by itself. Defaults to more than half of at least 10. A rule whose last run has stopped
	// or was paused waits until a person resumes or cancels that run.
	Stop StopRule
	// CloseOnPublish is that of [RunSpec].
	CloseOnPublish bool
}

const (
	ruleAfter     = time.Minute
	ruleMaxAfter  = time.Hour
	ruleRedrives  = 3
	maxRedrives   = 100
	ruleRate      = 10
	ruleShare     = 0.5
	ruleSample    = 10
	ruleBatch     = MaxPage
	ruleRuns      = 10 // at once, all but one of which only wait for outcomes
	rulesInterval = 10 * time.Second
)

// resolve fills the defaults in.
func (r Rule) resolve() (Rule, error) {
	r.After, r.MaxAfter = cmp.Or(r.After, ruleAfter), cmp.Or(r.MaxAfter, max(r.After, ruleMaxAfter))
	r.Redrives, r.Rate = cmp.Or(r.Redrives, ruleRedrives), cmp.Or(r.Rate, ruleRate)
	r.Stop.Share, r.Stop.MinSample = cmp.Or(r.Stop.Share, ruleShare), cmp.Or(r.Stop.MinSample, ruleSample)
	var errs []error
	if r.Name == "" {
		errs = append(errs, errors.New("a rule needs a name"))
	}
	if r.Reason == "" && r.ErrorClass == "" && r.ErrorCode == "" && r.Fingerprint == "" && r.Handler == "" && r.Topic == "" && r.CauseText == "" {
		errs = append(errs, errors.New("it says nothing of which entries it takes"))
	}
	if r.After < 0 || r.MaxAfter < r.After || r.Redrives < 1 || r.Redrives > maxRedrives || r.Rate < 0 {
		errs = append(errs, fmt.Errorf("after %s to %s, %d redrives, rate %v: must be positive, in order, and at most %d redrives",
			r.After, r.MaxAfter, r.Redrives, r.Rate, maxRedrives))
	}
	if _, err := r.spec(nil).Resolve(); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return r, fmt.Errorf("dlq: rule %q: %w: %w", r.Name, ErrInvalid, err)
	}
	return r, nil
}

// after is how long an entry waits that was redriven so often.
func (r *Rule) after(redrives int) time.Duration {
	d := r.After
	for range redrives {
		if d >= r.MaxAfter/2 {
			return r.MaxAfter
		}
		d *= 2
	}
	return min(d, r.MaxAfter)
}

// filter picks the entries that are due after so many redrives.
func (r *Rule) filter(redrives int, now time.Time) Filter {
	return Filter{
		Statuses: []Status{Pending}, Reason: r.Reason, ErrorClass: r.ErrorClass, ErrorCode: r.ErrorCode, Fingerprint: r.Fingerprint,
		Handler: r.Handler, Topic: r.Topic, CauseText: r.CauseText, Redrives: &redrives, DiedBefore: now.Add(-r.after(redrives)),
	}
}

func (r *Rule) spec(ids []int64) RunSpec {
	return RunSpec{Filter: Filter{IDs: ids}, Rate: r.Rate, Stop: r.Stop, CloseOnPublish: r.CloseOnPublish}
}

func (r *Rule) actor() string { return "rule " + r.Name }

// Automate redrives by rules until the context ends, whose error it returns. It looks every ten seconds; a rule that finds something
// starts a run, which the processes in [Manager.Work] carry on, this one among them if it works. Any number of processes may have the
// same rules: an entry is redriven once. Nothing is automatic unless a program calls this. The error wraps [ErrInvalid] for rules that
// make no sense.
func (m *Manager) Automate(ctx context.Context, rules ...Rule) error {
	var errs []error
	names := map[string]bool{}
	for i := range rules {
		var err error
		rules[i], err = rules[i].resolve()
		errs = append(errs, err)
		if names[rules[i].Name] {
			errs = append(errs, fmt.Errorf("dlq: rule %q: %w: there are two of this name", rules[i].Name, ErrInvalid))
		}
		names[rules[i].Name] = true
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for {
		for i := range rules {
			if err := m.applyRule(ctx, &rules[i]); err != nil && ctx.Err() == nil {
				m.logger.WarnContext(ctx, "a redrive rule could not be applied; it is tried again", "rule", rules[i].Name, "error", err)
			}
		}
		if err := wait(ctx, rulesInterval); err != nil {
			return err
		}
	}
}

// applyRule starts a run over what is due, unless the rule's last one is still there.
func (m *Manager) applyRule(ctx context.Context, r *Rule) error {
	unfinished, _, err := m.store.Runs(ctx, RunFilter{
		CreatedBy: r.actor(), States: []RunState{RunPreparing, RunAwaitingApproval, RunRunning, RunPaused, RunStopped},
	}, Page{Limit: ruleRuns})
	if err != nil || len(unfinished) == ruleRuns {
		return err
	}
	for i := range unfinished {
		if unfinished[i].State != RunRunning || unfinished[i].Counts.Waiting > 0 {
			return nil
		}
	}
	now := time.Now()
	var ids []int64
	for redrives := 0; redrives < r.Redrives && len(ids) < ruleBatch; redrives++ {
		due, err := m.store.List(ctx, r.filter(redrives, now), Page{Limit: ruleBatch - len(ids), Order: OldestFirst})
		if err != nil {
			return err
		}
		for i := range due.Entries {
			ids = append(ids, due.Entries[i].ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	spec := r.spec(ids)
	// Processes with the same rule, that look in the same interval, mean the same run: the second one is refused.
	spec.ID = uuid.NewSHA1(uuid.NameSpaceOID, fmt.Appendf(nil, "%s %d", r.actor(), now.UnixNano()/int64(rulesInterval))).String()
	_, err = m.startRun(ctx, spec, By{Actor: r.actor(), Note: "automatic"}, false)
	if errors.Is(err, ErrConflict) {
		return nil
	}
	return err
}
