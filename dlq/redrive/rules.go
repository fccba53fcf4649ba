package redrive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/wait"
)

// Rule redrives dead letters with technical causes automatically: "connection refused, after a minute, then after two,
// three times". It only takes PENDING entries: PARKED, resolved and discarded ones are left to people.
type Rule struct {
	// Name is in the audit log as "rule <name>". Required, unique.
	Name string `yaml:"name" jsonschema:"required"`
	// Reason, ErrorClass, ErrorCode, Fingerprint, Handler, Topic and CauseText select entries; see [Filter]. At least one
	// is required: a rule for everything would hide what is broken.
	Reason      envelope.Reason `yaml:"reason" jsonschema:"enum=permanent,enum=exhausted,enum=malformed,enum=expired,enum=panic,enum=manual,enum=crash"`
	ErrorClass  string          `yaml:"error_class"`
	ErrorCode   string          `yaml:"error_code"`
	Fingerprint string          `yaml:"fingerprint"`
	Handler     string          `yaml:"handler"`
	Topic       string          `yaml:"topic"`
	CauseText   string          `yaml:"cause"`
	// After is how long after its last death an entry is redriven for the first time. Defaults to 1 min. It doubles
	// with each redrive, up to MaxAfter, which defaults to 1 h.
	After    time.Duration `yaml:"after"`
	MaxAfter time.Duration `yaml:"max_after"`
	// Redrives is the maximum number of redrives. Defaults to 3. An entry whose own budget is used up earlier is PARKED.
	Redrives int `yaml:"redrives" jsonschema:"minimum=0"`
	// Rate is the maximum number of messages per second. Defaults to 10.
	Rate float64 `yaml:"rate" jsonschema:"minimum=0"`
	// Stop is when a run of the rule stops automatically. Defaults to more than half of at least 10. After a stopped run
	// the rule waits as long as After, twice as long after the next one, up to MaxAfter; then it cancels that run and
	// starts a new one with what has died since. While a run of it is paused, which only a person does, it waits for a
	// person.
	Stop StopCondition `yaml:"-"`
	// CloseOnPublish is that of [Spec].
	CloseOnPublish bool `yaml:"close_on_publish"`
}

const (
	ruleAfter     = time.Minute
	ruleMaxAfter  = time.Hour
	ruleRedrives  = 3
	maxRedrives   = 100
	ruleRate      = 10
	ruleShare     = 0.5
	ruleSample    = 10
	ruleBatch     = driver.MaxPage
	ruleRuns      = 10 // at once, all but one of which only wait for outcomes
	rulesInterval = 10 * time.Second
)

// ResolveRules returns rules with their defaults filled in. The error reports every fault, and wraps [dlq.ErrInvalid].
func ResolveRules(rules []Rule) ([]Rule, error) {
	var errs []error
	rules = slices.Clone(rules) // do not change the caller's
	names := map[string]bool{}
	for i := range rules {
		rule, err := rules[i].resolve()
		if names[rule.Name] {
			err = errors.Join(err, errors.New("two rules have this name"))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("dlq: rule %d (%s): %w: %w", i+1, rule.Name, dlq.ErrInvalid, err))
		}
		rules[i], names[rule.Name] = rule, true
	}
	return rules, errors.Join(errs...)
}

// resolve fills in the defaults.
func (r Rule) resolve() (Rule, error) {
	r.After, r.MaxAfter = cmp.Or(r.After, ruleAfter), cmp.Or(r.MaxAfter, max(r.After, ruleMaxAfter))
	r.Redrives, r.Rate = cmp.Or(r.Redrives, ruleRedrives), cmp.Or(r.Rate, ruleRate)
	r.Stop.Share, r.Stop.MinSample = cmp.Or(r.Stop.Share, ruleShare), cmp.Or(r.Stop.MinSample, ruleSample)
	var errs []error
	if r.Name == "" {
		errs = append(errs, errors.New("a rule needs a name"))
	}
	if r.Reason == "" && r.ErrorClass == "" && r.ErrorCode == "" && r.Fingerprint == "" && r.Handler == "" &&
		r.Topic == "" && r.CauseText == "" {
		errs = append(errs, errors.New("it selects no entries: set at least one field, such as the reason or the topic"))
	}
	if r.After < 0 || r.MaxAfter < r.After || r.Redrives < 1 || r.Redrives > maxRedrives || r.Rate < 0 {
		errs = append(errs, fmt.Errorf("after %s, max_after %s, redrives %d, rate %v: must be positive, in order, and at "+
			"most %d redrives", r.After, r.MaxAfter, r.Redrives, r.Rate, maxRedrives))
	}
	if r.Reason != "" && !slices.Contains(reasons(), string(r.Reason)) {
		errs = append(errs, fmt.Errorf("reason %q: one of %s", r.Reason, strings.Join(reasons(), ", ")))
	}
	_, err := r.spec(nil).Resolve()
	return r, errors.Join(append(errs, err)...)
}

// reasons are those that a filter knows.
func reasons() []string {
	field, _ := reflect.TypeFor[dlq.Filter]().FieldByName("Reason")
	return strings.Split(field.Tag.Get("enum"), ",")
}

// after is how long an entry with this many redrives waits.
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

// filter selects the entries that are due after this many redrives.
func (r *Rule) filter(redrives int, now time.Time) dlq.Filter {
	return dlq.Filter{
		Statuses: []dlq.Status{dlq.Pending}, Reason: string(r.Reason), ErrorClass: r.ErrorClass, ErrorCode: r.ErrorCode,
		Fingerprint: r.Fingerprint, Handler: r.Handler, Topic: r.Topic, CauseText: r.CauseText, Redrives: &redrives,
		DiedBefore: now.Add(-r.after(redrives)),
	}
}

func (r *Rule) spec(ids []int64) Spec {
	return Spec{Filter: dlq.Filter{IDs: ids}, Rate: r.Rate, Stop: r.Stop, CloseOnPublish: r.CloseOnPublish}
}

// rulePrefix begins the actor of a rule.
const rulePrefix = "rule "

func (r *Rule) actor() string { return rulePrefix + r.Name }

// Automate redrives by rules until the context ends, whose error it returns. It looks every ten seconds; a rule that
// finds something starts a run, which the processes in [Runner.Work] drive, including this one if it works. Any number
// of processes may have the same rules: an entry is redriven once. Nothing is automatic unless a program calls this.
// The error wraps [dlq.ErrInvalid] for invalid rules.
func (rn *Runner) Automate(ctx context.Context, rules ...Rule) error {
	rules, err := ResolveRules(rules)
	if err != nil {
		return err
	}
	for {
		for i := range rules {
			if err := rn.applyRule(ctx, &rules[i]); err != nil && ctx.Err() == nil {
				rn.cfg.Logger.WarnContext(ctx, "a redrive rule could not be applied; it is retried", "rule", rules[i].Name,
					"error", err)
			}
		}
		if err := wait.For(ctx, rulesInterval); err != nil {
			return err
		}
	}
}

// applyRule starts a run over what is due, unless the rule's last run has not ended.
func (rn *Runner) applyRule(ctx context.Context, r *Rule) error {
	unfinished, _, err := rn.runs.Runs(ctx, RunFilter{
		CreatedBy: r.actor(), States: []State{Preparing, AwaitingApproval, Running, Paused, Stopped},
	}, dlq.Page{Limit: ruleRuns})
	if err != nil || len(unfinished) == ruleRuns {
		return err
	}
	now := rn.now(ctx)
	for i := range unfinished {
		run := &unfinished[i]
		if run.State == Stopped && run.ChangedBy == stoppedBy {
			if over, err := rn.tryAgain(ctx, r, run, now); err != nil || !over {
				return err
			}
			continue
		}
		if run.State != Running || run.Counts.Waiting > 0 {
			return nil
		}
	}
	if err := rn.parkExhausted(ctx, r, now); err != nil {
		return err
	}
	var ids []int64
	for redrives := 0; redrives < r.Redrives && len(ids) < ruleBatch; redrives++ {
		if ids, err = rn.due(ctx, r.filter(redrives, now), ids); err != nil {
			return err
		}
	}
	if len(ids) == 0 {
		return nil
	}
	spec := r.spec(ids)
	// Processes with the same rule that look in the same interval mean the same run: the second start is refused.
	spec.ID = uuid.NewSHA1(uuid.NameSpaceOID,
		fmt.Appendf(nil, "%s %d", r.actor(), now.UnixNano()/int64(rulesInterval))).String()
	_, err = rn.startRun(ctx, spec, dlq.By{Actor: r.actor(), Note: "automatic"}, false)
	if errors.Is(err, dlq.ErrConflict) {
		return nil
	}
	return err
}

// stoppedBy is the actor of a run that stops automatically.
const stoppedBy = "redrive"

// tryAgain cancels a run of the rule that has stopped automatically, once the rule has waited long enough, and reports
// whether it did.
func (rn *Runner) tryAgain(ctx context.Context, r *Rule, run *Run, now time.Time) (bool, error) {
	const most = 65 // this run, and as many stops as doubling any pause to the longest takes
	latest, _, err := rn.runs.Runs(ctx, RunFilter{CreatedBy: r.actor()}, dlq.Page{Limit: most})
	if err != nil {
		return false, err
	}
	stops := 0 // in a row, before this one
	for i := range latest {
		if latest[i].ID == run.ID {
			continue
		}
		if latest[i].State != Cancelled || latest[i].ChangedBy != r.actor() {
			break
		}
		stops++
	}
	if now.Before(run.ChangedAt.Add(r.after(stops))) {
		return false, nil
	}
	by := dlq.By{Actor: r.actor(), Note: "the rule tries again: " + run.Cause, Version: run.Version}
	_, err = rn.changeRun(ctx, run.ID, ActionCancel, by)
	if errors.Is(err, dlq.ErrConflict) { // a person, or another process with the same rule, was faster
		return false, nil
	}
	return err == nil, err
}

// parkExhausted parks entries that died again after the rule's last redrive of them, so that a person sees that they
// wait.
func (rn *Runner) parkExhausted(ctx context.Context, r *Rule, now time.Time) error {
	ids, err := rn.due(ctx, r.filter(r.Redrives, now), nil)
	if err != nil || len(ids) == 0 {
		return err
	}
	_, err = rn.cfg.Store.Change(ctx, driver.Change{
		Action: driver.ActionPark, IDs: ids, Actor: r.actor(), Note: fmt.Sprintf("%d redrives did not help", r.Redrives),
		At: now,
	})
	return err
}

// due adds the entries that a rule takes to ids, up to a batch. Where approval is configured, entries that wait because
// of a person are left to people: the configuration approved the rule only for what died.
func (rn *Runner) due(ctx context.Context, f dlq.Filter, ids []int64) ([]int64, error) {
	page := dlq.Page{Limit: ruleBatch, Order: driver.OldestFirst}
	for {
		listing, err := rn.cfg.Store.List(ctx, f, page)
		if err != nil {
			return nil, err
		}
		for i := range listing.Entries {
			if len(ids) == ruleBatch {
				break
			}
			personal, err := rn.personal(ctx, &listing.Entries[i])
			if err != nil {
				return nil, err
			}
			if !personal {
				ids = append(ids, listing.Entries[i].ID)
			}
		}
		if page.After = listing.Next; page.After == "" || len(ids) >= ruleBatch {
			return ids, nil
		}
	}
}

// personal reports whether an entry is waiting because of a person: they edited it, or changed it since it died. A rule
// that sends it would do for them what they may not do alone.
func (rn *Runner) personal(ctx context.Context, e *dlq.Entry) (bool, error) {
	if rn.cfg.Approval == nil {
		return false, nil
	}
	if !e.ChangedAt.Equal(e.DiedAt) && e.ChangedBy != stoppedBy && !strings.HasPrefix(e.ChangedBy, rulePrefix) {
		return true, nil
	}
	// A revision alone shows no edit: a message that dies again is kept as it is then, perhaps with its error in it.
	if e.Revision == 0 {
		return false, nil
	}
	records, err := rn.audit(ctx, e.ID)
	return slices.ContainsFunc(records, func(r driver.AuditRecord) bool {
		return r.Detail["revision"] != "" || r.Action == driver.ActionImport
	}), err
}
