package dashboard

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/payload"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// newRunData is the form that starts a run, with what it would do.
type newRunData struct {
	Search search
	Chips  []chip
	// Form are the fields as typed.
	Form    url.Values
	Preview *redrive.Preview
	Sample  []sampleView
	Problem string
	Targets []string
	// RunID makes a second press of the button the same run.
	RunID string
	// Label is the button's: it names what it will send.
	Label string
}

// sampleView is an entry of the preview with the result of the expression.
type sampleView struct {
	Entry   *dlq.Entry
	Problem string
	Diff    *payload.Diff
}

const sampleSize = 5

// specOf reads a run from its form.
func specOf(form url.Values, s *search) (redrive.Spec, error) {
	spec := redrive.Spec{
		Filter: s.Filter, JQ: strings.TrimSpace(form.Get("jq")), Target: form.Get("target"),
		CloseOnPublish: form.Get("close_on_publish") != "", Paused: form.Get("paused") != "",
	}
	if len(spec.Filter.Statuses) == 0 {
		spec.Filter.Statuses = []dlq.Status{dlq.Pending}
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
func sendLabel(p *redrive.Preview) string {
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
	steps := make([]string, len(spec.Canary))
	for i, n := range spec.Canary {
		steps[i] = strconv.Itoa(n)
	}
	return label + ", canary " + strings.Join(steps, ", ")
}

// rateText is a rate as it was typed: it is not rounded.
func rateText(rate float64) string { return strconv.FormatFloat(rate, 'f', -1, 64) + "/s" }

// filterOf is the filter in the parameters of a run's form.
func filterOf(q url.Values, now time.Time) (search, error) {
	s, err := parseSearch(q, now)
	return s.Frozen(now), err
}

// newRun is the dry run: the form's entries are counted and shown, and nothing is sent.
func (d *dashboard) newRun(w http.ResponseWriter, r *http.Request) error {
	return d.previewRun(w, r, http.StatusOK, r.Form, "")
}

func (d *dashboard) previewRun(w http.ResponseWriter, r *http.Request, status int, form url.Values,
	problem string,
) error {
	s, err := filterOf(form, d.cfg.Manager.Now(r.Context()))
	if err != nil {
		return err
	}
	if !form.Has("canary") { // a first look: careful defaults
		form.Set("canary", "1, 10, 100")
	}
	if !form.Has("rate") && d.cfg.Rate > 0 {
		form.Set("rate", strconv.FormatFloat(d.cfg.Rate, 'f', -1, 64))
	}
	data := newRunData{
		Form: form, Problem: problem, Targets: d.cfg.Runner.Targets(),
		RunID: cmp.Or(form.Get("run_id"), uuid.NewString()),
	}
	if err := d.sees(r.Context(), &s.Filter, strings.TrimSpace(form.Get("jq"))); err != nil {
		return err
	}
	spec, err := specOf(form, &s)
	s.Filter.Statuses = spec.Filter.Statuses
	data.Search, data.Chips = s, s.Chips()
	if err == nil {
		data.Preview, err = d.cfg.Runner.PreviewRun(r.Context(), spec, sampleSize)
	}
	if err != nil && data.Problem == "" {
		f := faultOf(err)
		if f.status >= http.StatusInternalServerError {
			return err
		}
		data.Problem = err.Error()
	}
	if data.Preview != nil {
		ids := make([]int64, len(data.Preview.Sample))
		for i := range ids {
			ids[i] = data.Preview.Sample[i].Entry.ID
		}
		if err := d.cfg.Read(r.Context(), "preview", ids...); err != nil {
			return err
		}
		data.Sample, data.Label = samples(data.Preview, d.cfg.Visible(r.Context())), sendLabel(data.Preview)
	}
	return d.render(w, r, status, "newrun", view{Title: "New redrive run", Nav: "runs", Data: &data})
}

// samples are the entries of a preview as the caller may see them.
func samples(p *redrive.Preview, sees visible.View) []sampleView {
	views := make([]sampleView, 0, len(p.Sample))
	for i := range p.Sample {
		s := &p.Sample[i]
		v := sampleView{Entry: sees.ShownEntry(&s.Entry), Problem: sees.Text(s.Problem)}
		if s.After != nil {
			diff := sees.Diff(s.Entry.Body, s.After)
			v.Diff = &diff
		}
		views = append(views, v)
	}
	return views
}

// startRun starts the run of the form, whether it was previewed or not: the fields are those of the preview. The id in
// the form makes a second press of the button the same run.
func (d *dashboard) startRun(w http.ResponseWriter, r *http.Request) error {
	s, err := filterOf(r.PostForm, d.cfg.Manager.Now(r.Context()))
	if err != nil {
		return err
	}
	if err := d.sees(r.Context(), &s.Filter, strings.TrimSpace(r.PostForm.Get("jq"))); err != nil {
		return err
	}
	spec, err := specOf(r.PostForm, &s)
	if err != nil {
		return d.previewRun(w, r, http.StatusUnprocessableEntity, r.PostForm, err.Error())
	}
	spec.ID = r.PostForm.Get("run_id")
	by, err := d.by(r)
	if err != nil {
		return err
	}
	by.Version = 0
	if spec.ID == "" {
		return invalid("the form has no run_id")
	}
	// The set is frozen while the browser waits: a large one continues in the background, and the page of the run shows
	// its progress.
	return d.inBackground(w, r, "Freezing the entries of a run", "/runs/"+url.PathEscape(spec.ID),
		func(ctx context.Context) (string, error) {
			run, err := d.cfg.Runner.StartRun(ctx, spec, by)
			if errors.Is(err, dlq.ErrConflict) { // the button was pressed twice
				run, err = d.cfg.Runner.Run(ctx, spec.ID)
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
