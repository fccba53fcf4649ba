package dashboard

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// systemData is what runs here and how it is configured. None of it can be changed from a browser.
type systemData struct {
	Health    []Component
	Topology  *node
	NoPlan    string // why there is no topology
	Settings  *node
	Rules     []redrive.Rule
	Retention dlq.Retention
	Targets   []string
	CanSend   bool
}

// node is a part of a document, as the page draws it.
type node struct {
	// Name is the member's, empty for an element of a list.
	Name string
	// Text is a value; Children are the members of an object or the elements of a list.
	Text     string
	Children []node
	List     bool
	// Columns and Rows are a list of objects that only have values: a table.
	Columns []string
	Rows    [][]string
}

// nodeOf turns what JSON can show into what the page draws.
func nodeOf(value any) (*node, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	var plain any
	if err := json.Unmarshal(data, &plain); err != nil {
		return nil, err
	}
	n := nodeOfPlain("", plain)
	return &n, nil
}

func nodeOfPlain(name string, value any) node {
	n := node{Name: name}
	switch v := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(mapKeys(v)) {
			n.Children = append(n.Children, nodeOfPlain(key, v[key]))
		}
		slices.SortStableFunc(n.Children, func(a, b node) int { return cmp.Compare(a.depth(), b.depth()) }) // values first
	case []any:
		n.List = true
		if n.table(v) {
			return n
		}
		for _, element := range v {
			n.Children = append(n.Children, nodeOfPlain("", element))
		}
	case nil:
		n.Text = "none"
	case bool:
		n.Text = map[bool]string{true: "yes", false: "no"}[v]
	case float64:
		n.Text = strings.TrimSuffix(fmt.Sprintf("%f", v), ".000000")
	default:
		n.Text = fmt.Sprint(v)
	}
	return n
}

func (n *node) depth() int {
	if len(n.Children) == 0 && len(n.Rows) == 0 {
		return 0
	}
	return 1
}

// table makes a table of a list of objects whose members are values; it reports whether the list is one.
func (n *node) table(list []any) bool {
	columns := map[string]bool{}
	for _, element := range list {
		object, ok := element.(map[string]any)
		if !ok {
			return false
		}
		for name, value := range object {
			switch value.(type) {
			case map[string]any, []any:
				return false
			}
			columns[name] = true
		}
	}
	if len(columns) == 0 || len(columns) > 8 {
		return false
	}
	n.Columns = slices.SortedFunc(mapKeys(columns), func(a, b string) int {
		return cmp.Or(cmp.Compare(titleRank(a), titleRank(b)), cmp.Compare(a, b))
	})
	for _, element := range list {
		object, _ := element.(map[string]any)
		row := make([]string, len(n.Columns))
		for i, name := range n.Columns {
			if value, there := object[name]; there {
				row[i] = nodeOfPlain(name, value).Text
			}
		}
		n.Rows = append(n.Rows, row)
	}
	return true
}

// titleRank puts the name of a thing before its properties.
func titleRank(name string) int {
	if i := slices.Index([]string{"kind", "type", "name"}, strings.ToLower(name)); i >= 0 {
		return i - 3
	}
	return 0
}

func (d *dashboard) system(w http.ResponseWriter, r *http.Request) error {
	s, at, err := d.snapshot(r.Context())
	if err != nil {
		return err
	}
	m := d.cfg.Manager
	data := systemData{
		Health: s.Health, Rules: d.cfg.Rules, Retention: d.cfg.Retention, Targets: d.cfg.Runner.Targets(),
		CanSend: m.CanRedrive(),
	}
	if d.cfg.Topology == nil {
		data.NoPlan = "This server has no brokers, or its program does not report them."
	} else {
		plan, _, err := cached(r.Context(), d.cache, "topology", d.cfg.Topology)
		if err != nil {
			data.NoPlan = "The brokers did not say: " + err.Error()
		} else if data.Topology, err = nodeOf(plan); err != nil {
			return err
		}
	}
	if access.From(r.Context()).Role.Allows(access.Admin) && d.cfg.Settings != nil {
		if data.Settings, err = nodeOf(d.cfg.Settings); err != nil {
			return err
		}
	}
	return d.page(w, r, "system", view{Title: "System", Nav: "system", Live: true, At: at, Data: &data})
}
