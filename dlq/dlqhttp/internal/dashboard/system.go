package dashboard

import (
	"bytes"
	"encoding/json"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

// systemData is what runs here and how it is configured. None of it can be changed from a browser.
type systemData struct {
	Health             wire.Health
	Topology, Settings []token
	NoPlan             string // why there is no topology
	Rules              []redrive.Rule
	Retention          dlq.Retention
	Targets            []string
	CanSend            bool
}

// document is what JSON can show, as the page draws it.
func document(value any) ([]token, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false) // the template does
	encoder.SetIndent("", "  ")
	err := encoder.Encode(value)
	return tokens(out.String()), err
}

func (r *request) system() error {
	s, at, err := r.snapshot()
	if err != nil {
		return err
	}
	data := systemData{
		Health: r.sees.Health(s.Health), Rules: r.sees.Rules(r.cfg.Rules), Retention: r.cfg.Retention,
		Targets: r.cfg.Runner.Targets(), CanSend: r.cfg.Manager.CanRedrive(),
		NoPlan: "This server has no brokers, or its program does not report them.",
	}
	if r.cfg.Topology != nil {
		plan, _, err := cached(r.Context(), r.cache, "topology", r.cfg.Topology)
		if err != nil {
			data.NoPlan = "The topology is not available: " + r.sees.Text(err.Error())
		} else if plan, err = r.sees.JSON(plan); err != nil {
			return err
		} else if data.Topology, err = document(plan); err != nil {
			return err
		}
	}
	if r.who.Role.Allows(access.Admin) && r.cfg.Settings != nil {
		if data.Settings, err = document(r.cfg.Settings); err != nil {
			return err
		}
	}
	return r.page("system", view{Title: "System", Nav: "system", Live: true, At: at, Data: &data})
}
