package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

// newRunData is the form that starts a run, with what it would do.
type newRunData struct {
	Search search
	Chips  []chip
	// Form are the fields as typed.
	Form    url.Values
	Preview *wire.RunPreview
	Problem string
	Targets []string
	// RunID makes a second press of the button the same run.
	RunID string
	// Label is the button's: it names what it will send.
	Label string
}

const sampleSize = 5

// specOf reads a run from its form.
func specOf(form url.Values, s *search) (redrive.Spec, error) {
	spec := redrive.Spec{
		Filter: s.Filter, JQ: strings.TrimSpace(form.Get("jq")), Target: form.Get("target"),
		CloseOnPublish: form.Get("close_on_publish") != "", Paused: form.Get("paused") != "",
	}
	var err error
	number := func(name string, least, most float64) float64 {
		text := strings.TrimSpace(form.Get(name))
		if text == "" || err != nil {
			return 0
		}
		n, parsed := strconv.ParseFloat(text, 64)
		if parsed != nil || n < least || n > most {
			err = invalid("%s %q: a number from %v", strings.ReplaceAll(name, "_", " "), text, least)
		}
		return n
	}
	spec.Limit = int64(number("run_limit", 1, 1e15))
	spec.Rate = number("rate", 0, 1e9)
	spec.Stop.Share = number("stop", 0, 100) / 100
	for _, text := range strings.FieldsFunc(form.Get("canary"), func(c rune) bool { return c == ',' || c == ' ' }) {
		n, parsed := strconv.Atoi(text)
		if parsed != nil || n < 1 {
			return spec, invalid("canary %q: numbers such as 1, 10, 100", text)
		}
		spec.Canary = append(spec.Canary, n)
	}
	return spec, err
}

// sendLabel is what the button of a run does, in numbers.
func sendLabel(p *wire.RunPreview) string {
	verb, spec := "Send", &p.Spec
	switch {
	case p.NeedsApproval:
		verb = "Ask to send"
	case spec.Paused:
		verb = "Freeze"
	}
	speed := "as fast as possible"
	if spec.Rate > 0 {
		speed = "at " + rateText(spec.Rate)
	}
	label := verb + " " + number(p.Count) + " " + speed
	if len(spec.Canary) == 0 {
		return label + ", no canary"
	}
	return label + ", canary " + strings.Trim(strings.ReplaceAll(fmt.Sprint(spec.Canary), " ", ", "), "[]")
}

// runSearch reads which entries a run is for, and checks that the caller may search for them and use the expression.
func (r *request) runSearch(form url.Values) (search, error) {
	s, err := parseSearch(form, r.now())
	if err != nil {
		return s, err
	}
	s = s.Frozen(r.now())
	if len(s.Filter.Statuses) == 0 {
		s.Filter.Statuses = []dlq.Status{dlq.Pending}
	}
	return s, r.searches(&s.Filter, strings.TrimSpace(form.Get("jq")))
}

// newRun is the dry run: the form's entries are counted and shown, and nothing is sent.
func (r *request) newRun() error {
	form := r.Form
	if !form.Has("canary") { // a first look: careful defaults
		form.Set("canary", "1, 10, 100")
	}
	if !form.Has("rate") && r.cfg.Rate > 0 {
		form.Set("rate", strconv.FormatFloat(r.cfg.Rate, 'f', -1, 64))
	}
	s, err := r.runSearch(form)
	if err != nil {
		return err
	}
	spec, err := specOf(form, &s)
	return r.runForm(form, &s, &spec, err)
}

// runForm shows the form of a run with what it would do, or with the problem of a field.
func (r *request) runForm(form url.Values, s *search, spec *redrive.Spec, problem error) error {
	data := newRunData{
		Search: *s, Chips: s.Chips(), Form: form, Targets: r.cfg.Runner.Targets(),
		RunID: cmp.Or(form.Get("run_id"), uuid.NewString()),
	}
	status := http.StatusOK
	if problem == nil {
		data.Preview, problem = r.cfg.Preview(r.Context(), *spec, sampleSize)
	} else if r.Method == http.MethodPost {
		status = http.StatusUnprocessableEntity
	}
	switch {
	case problem == nil:
		data.Label = sendLabel(data.Preview)
	case faultOf(r.Context(), problem).Status >= http.StatusInternalServerError:
		return problem
	default:
		data.Problem = problem.Error()
	}
	return r.render(status, "newrun", view{Title: "New redrive run", Nav: "runs", Data: &data})
}

// startRun starts the run of the form, whether it was previewed or not: the fields are those of the preview. The id in
// the form makes a second press of the button the same run.
func (r *request) startRun() error {
	s, err := r.runSearch(r.PostForm)
	if err != nil {
		return err
	}
	spec, err := specOf(r.PostForm, &s)
	if err != nil {
		return r.runForm(r.PostForm, &s, &spec, err)
	}
	if spec.ID = r.PostForm.Get("run_id"); spec.ID == "" {
		return invalid("the form has no run_id")
	}
	by := r.by()
	// The set is frozen while the browser waits: a large one continues in the background, and the page of the run shows
	// its progress.
	return r.inBackground("Freezing the entries of a run", "/runs/"+url.PathEscape(spec.ID),
		func(ctx context.Context) (string, error) {
			run, err := r.cfg.Runner.StartRun(ctx, spec, by)
			if errors.Is(err, dlq.ErrConflict) { // the button was pressed twice, or the form was changed since
				var same bool
				if run, same, err = r.cfg.StartedBefore(ctx, spec); err == nil && !same {
					f := newFault(http.StatusConflict, "This form has started a run already",
						"It had other values then, and nothing was started now. Begin a new run for these.", nil)
					f.back, f.backLabel = "/runs/"+url.PathEscape(spec.ID), "The run"
					err = f
				}
			}
			if err != nil {
				return "", err
			}
			if run.State == redrive.AwaitingApproval {
				return "The run waits for someone else's approval.", nil
			}
			return "The run has started with " + plural(run.Counts.Total(), "entry", "entries") + ".", nil
		})
}
