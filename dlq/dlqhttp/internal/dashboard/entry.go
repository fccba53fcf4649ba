package dashboard

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/operations"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/payload"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// entryData is one dead letter with everything known about it.
type entryData struct {
	Entry    wire.Entry
	Body     wire.Body // the shown revision
	Payload  payloadView
	Headers  []headerView
	Timeline []timelineEvent
	Audit    []auditRow
	Trace    string     // the id of the message's W3C trace
	Diff     *wire.Diff // against what died first, when it was edited
	Actions  []driver.Action
	// In is the list that the page was opened from; Newer and Older are the neighbours in it, 0 at its ends.
	In           string
	Newer, Older int64
	// Fixable means that it can be edited now, and Out that the outcome of a redrive is awaited.
	Fixable, Out bool
}

// headerView is a header, and whether this project or the broker wrote it.
type headerView struct {
	Name, Value string
	Ours        bool
}

const (
	// maxShown is how much of a payload a page shows, maxDumped how much of a binary one; all of it can be downloaded.
	maxShown  = 256 << 10
	maxDumped = 4 << 10
)

// payloadView is a payload in readable form.
type payloadView struct {
	// Tokens are those of JSON, indented; Raw is the text as it is. Binary payloads only have Dump.
	Tokens    []token
	Raw, Dump string
	Size      int
	Cut       bool
	JSON      bool
}

func viewPayload(body []byte) payloadView {
	v := payloadView{Size: len(body), Cut: len(body) > maxShown}
	if !utf8.Valid(body) || bytes.IndexByte(body, 0) >= 0 {
		v.Cut = len(body) > maxDumped
		v.Dump = hex.Dump(body[:min(len(body), maxDumped)])
		return v
	}
	v.Raw = strings.ToValidUTF8(string(body[:min(len(body), maxShown)]), "") // the cut may be within a character
	if v.Cut {
		return v
	}
	var text []byte
	if text, v.JSON = payload.Indent(body); v.JSON {
		v.Tokens = tokens(string(text))
	}
	return v
}

func entryPath(id int64) string { return "/entries/" + driver.FormatID(id) }

// readEntry reads an entry that a person is about to see, and records that.
func (r *request) readEntry() (*dlq.Entry, error) {
	id, err := driver.ParseID(r.PathValue("id"))
	if err != nil {
		return nil, newFault(http.StatusNotFound, "There is no such entry", "The id of an entry is a number.", err)
	}
	e, err := r.cfg.Manager.Get(r.Context(), id)
	if err != nil {
		return nil, err
	}
	return e, r.cfg.Read(r.Context(), "page", id)
}

// revision is the body of an entry that the address asks for: the newest unless it names a revision.
func (r *request) revision(e *dlq.Entry) (*dlq.Body, error) {
	text := r.Form.Get("revision")
	if text == "" {
		return e.Body, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return nil, invalid("revision %q: a number from 0", text)
	}
	return r.cfg.Manager.Body(r.Context(), e.ID, n)
}

func (r *request) entry() error {
	full, err := r.readEntry()
	if err != nil {
		return err
	}
	data := entryData{
		Entry: r.sees.Entry(full), Actions: legal(full, r.now()), Out: full.Status == dlq.Retrying,
		Fixable: full.Status == dlq.Pending || full.Status == dlq.Parked,
	}
	if err := r.neighbours(full, &data); err != nil {
		return err
	}
	body, err := r.revision(full)
	if err != nil {
		return err
	}
	if full.Revision > 0 {
		first, err := r.cfg.Manager.Body(r.Context(), full.ID, 0)
		if err != nil {
			return err
		}
		data.Diff = new(r.sees.Diff(first, full.Body))
	}
	records, err := r.cfg.Manager.Audit(r.Context(), full.ID)
	if err != nil {
		return err
	}
	shown := r.sees.Audit(records)
	data.Audit, data.Timeline = r.auditRows(shown), timeline(&data.Entry, shown)
	data.show(r.sees.Body(body))
	live := !r.cfg.AuditReads // otherwise each refresh would be recorded
	return r.page("entry", view{Title: fmt.Sprintf("Entry %d", full.ID), Nav: "entries", Live: live, Data: &data})
}

// neighbours finds the previous and the next entry in the list that the page was opened from: all entries without one.
func (r *request) neighbours(e *dlq.Entry, data *entryData) error {
	data.In = r.Form.Get("in")
	q, err := url.ParseQuery(data.In)
	if err != nil {
		return invalid("in %.80q", data.In)
	}
	s, err := parseSearch(q, r.now())
	if err != nil {
		return err
	}
	if s.Filter.ReadsBodies() {
		return nil // finding the next one would read them one by one
	}
	if err := r.searches(&s.Filter, ""); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), operations.HealthTimeout)
	defer cancel()
	for order, to := range map[wire.Order]*int64{driver.NewestFirst: &data.Older, driver.OldestFirst: &data.Newer} {
		after := wire.Cursor{Order: order, At: e.CreatedAt, ID: e.ID}.String()
		l, err := r.cfg.List(ctx, s.Filter, dlq.Page{Limit: 1, Order: order, After: after})
		if ctx.Err() != nil {
			return nil // the page is worth more than its links
		}
		if err != nil {
			return err
		}
		if len(l.Entries) > 0 {
			*to = l.Entries[0].ID
		}
	}
	return nil
}

func (e *entryData) show(body wire.Body) {
	e.Body, e.Payload = body, viewPayload(body.Bytes())
	for _, name := range slices.Sorted(maps.Keys(body.Headers)) {
		e.Headers = append(e.Headers, headerView{name, body.Headers[name], !dlq.EditableHeader(name)})
	}
	parts := strings.Split(body.Headers[envelope.KeyTraceParent], "-")
	if len(parts) == 4 && len(parts[1]) == 32 && (&dlq.Filter{TraceID: parts[1]}).Validate() == nil {
		e.Trace = parts[1]
	}
}

// legal are the actions that the state of an entry allows, in the order of their buttons.
func legal(e *dlq.Entry, now time.Time) (actions []driver.Action) {
	for _, action := range []driver.Action{
		driver.ActionRedrive, driver.ActionResolve, driver.ActionDiscard, driver.ActionPark, driver.ActionRestore,
	} {
		change := driver.Change{Action: action, At: now}
		if _, err := change.Apply(*e); err == nil {
			actions = append(actions, action)
		}
	}
	return actions
}

// changeEntry does one action on one entry, in the version that was shown: a person who pressed a button on an old page
// learns who was faster.
func (r *request) changeEntry() error {
	id, err := driver.ParseID(r.PathValue("id"))
	if err != nil {
		return err
	}
	m, do := r.cfg.Manager, r.PostForm.Get("do")
	if do == "release" {
		if err := r.requires(access.Admin); err != nil {
			return err
		}
	}
	action, known := map[string]struct {
		run  func(context.Context, int64, dlq.By) (*dlq.Entry, error)
		done string
	}{
		"release": {m.Release, "released; the outcome of its redrive is no longer waited for"},
		"redrive": {m.Redrive, "sent back to its consumer; its outcome will show here"},
		"resolve": {m.Resolve, "resolved"},
		"discard": {m.Discard, "discarded; it is kept and can be restored"},
		"park":    {m.Park, "parked for a person"},
		"restore": {m.Restore, "pending again"},
	}[do]
	if !known {
		return invalid("action %q", do)
	}
	_, err = action.run(r.Context(), id, r.by())
	r.forget()
	if err != nil {
		return err
	}
	path := entryPath(id)
	if in := r.PostForm.Get("in"); in != "" {
		path += "?in=" + url.QueryEscape(in) // keep the list
	}
	return r.redirect(path, fmt.Sprintf("Entry %d: %s.", id, action.done))
}

// payload downloads the payload of an entry: as a file, which no browser renders.
func (r *request) payload() error {
	e, err := r.readEntry()
	if err != nil {
		return err
	}
	body, err := r.revision(e)
	if err != nil {
		return err
	}
	shown := r.sees.Body(body)
	return r.download("application/octet-stream", fmt.Sprintf("entry-%d-revision-%d.bin", e.ID, body.Revision),
		shown.Bytes())
}
