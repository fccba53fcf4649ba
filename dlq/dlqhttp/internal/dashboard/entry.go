package dashboard

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/payload"
	"github.com/redrive-go/redrive/envelope"
)

// entryData is one dead letter with everything known about it.
type entryData struct {
	Entry    *dlq.Entry
	Payload  payloadView
	Headers  []headerView
	Timeline []timelineEvent
	Audit    []auditRow
	Trace    traceView
	Diff     *payload.Diff // against what died first, when it was edited
	Revision int           // the body that is shown
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

// traceView is the W3C trace of the message.
type traceView struct{ ID, Span string }

// maxShown is how much of a payload a page shows; all of it can be downloaded.
const maxShown = 256 << 10

// payloadView is a payload in readable form.
type payloadView struct {
	// Tokens are those of JSON, indented; Raw is the text as it is. Binary payloads only have Dump.
	Tokens    []token
	Raw, Dump string
	Size      int64
	Cut       bool
	JSON      bool
}

func viewPayload(payload []byte) payloadView {
	v := payloadView{Size: int64(len(payload))}
	shown := payload
	if len(shown) > maxShown {
		shown, v.Cut = shown[:maxShown], true
	}
	text := strings.ToValidUTF8(string(shown), "") // the cut may be within a character
	if !utf8.Valid(payload) || bytes.IndexByte(payload, 0) >= 0 {
		const dumped = 4 << 10
		v.Cut = len(payload) > dumped
		v.Dump = hex.Dump(payload[:min(len(payload), dumped)])
		return v
	}
	v.Raw = text
	var indented bytes.Buffer
	if !v.Cut && len(payload) > 0 && json.Indent(&indented, payload, "", "  ") == nil {
		v.JSON, v.Tokens = true, tokens(indented.String())
	}
	return v
}

// readEntry reads an entry that a person is about to see, and records that.
func (d *dashboard) readEntry(r *http.Request) (*dlq.Entry, error) {
	id, err := driver.ParseID(r.PathValue("id"))
	if err != nil {
		return nil, newFault(http.StatusNotFound, "There is no such entry", "An entry's id is a number.", err)
	}
	full, err := d.cfg.Manager.Get(r.Context(), id)
	if err == nil {
		err = d.cfg.Read(r.Context(), "page", id)
	}
	if err != nil {
		return nil, err
	}
	return full, nil
}

func (d *dashboard) entry(w http.ResponseWriter, r *http.Request) error {
	full, err := d.readEntry(r)
	if err != nil {
		return err
	}
	sees := d.cfg.Visible(r.Context())
	data := entryData{
		Entry: sees.ShownEntry(full), Revision: full.Revision,
		Actions: legal(full, d.cfg.Manager.Now(r.Context())),
	}
	data.Fixable = full.Status == dlq.Pending || full.Status == dlq.Parked
	data.Out = full.Status == dlq.Retrying
	if err := d.neighbours(r, full, &data); err != nil {
		return err
	}
	body := full.Body
	if text := r.URL.Query().Get("revision"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return invalid("revision %q: a number from 0", text)
		}
		if body, err = d.cfg.Manager.Body(r.Context(), full.ID, n); err != nil {
			return err
		}
		data.Revision = n
	}
	if full.Revision > 0 {
		first, err := d.cfg.Manager.Body(r.Context(), full.ID, 0)
		if err != nil {
			return err
		}
		diff := sees.Diff(first, full.Body)
		data.Diff = &diff
	}
	records, err := d.cfg.Manager.Audit(r.Context(), full.ID)
	if err != nil {
		return err
	}
	shown := sees.Audit(records)
	for i := range shown { // not folded: all are of this entry
		data.Audit = append(data.Audit, d.auditRows(r, shown[i:i+1])...)
	}
	data.show(body, sees)
	data.Timeline = timeline(data.Entry, shown)
	title := fmt.Sprintf("Entry %d", full.ID)
	return d.page(w, r, "entry", view{Title: title, Nav: "entries", Live: true, Data: &data})
}

// neighbours finds the previous and the next entry in the list that the page was opened from: all entries without one.
func (d *dashboard) neighbours(r *http.Request, e *dlq.Entry, data *entryData) error {
	data.In = r.URL.Query().Get("in")
	q, err := url.ParseQuery(data.In)
	if err != nil {
		return invalid("in %.80q", data.In)
	}
	s, err := parseSearch(q, d.cfg.Manager.Now(r.Context()))
	if err != nil {
		return err
	}
	if s.Filter.ReadsBodies() {
		return nil // finding the next one would read them one by one
	}
	if err := d.sees(r.Context(), &s.Filter, ""); err != nil {
		return err
	}
	for order, to := range map[driver.Order]*int64{driver.NewestFirst: &data.Older, driver.OldestFirst: &data.Newer} {
		after := driver.Cursor{Order: order, At: e.CreatedAt, ID: e.ID}.String()
		l, err := d.cfg.Manager.List(r.Context(), s.Filter, dlq.Page{Limit: 1, Order: order, After: after})
		if err != nil {
			return err
		}
		if len(l.Entries) > 0 {
			*to = l.Entries[0].ID
		}
	}
	return nil
}

// show sets the visible part of a body.
func (e *entryData) show(body *dlq.Body, sees visible.View) {
	if body == nil {
		return
	}
	shown := sees.ShownBody(body)
	e.Entry.Body = shown
	e.Payload = viewPayload(shown.Payload)
	for name, value := range shown.Headers {
		e.Headers = append(e.Headers, headerView{name, value, !dlq.EditableHeader(name)})
	}
	slices.SortFunc(e.Headers, func(a, b headerView) int { return strings.Compare(a.Name, b.Name) })
	parts := strings.Split(shown.Headers[envelope.KeyTraceParent], "-")
	if len(parts) == 4 && len(parts[1]) == 32 && (&dlq.Filter{TraceID: parts[1]}).Validate() == nil {
		e.Trace = traceView{parts[1], parts[2]}
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

// change does one action on one entry, in the version that was shown: a person who pressed a button on an old page
// learns who was faster.
func (d *dashboard) change(w http.ResponseWriter, r *http.Request) error {
	id, err := driver.ParseID(r.PathValue("id"))
	if err != nil {
		return err
	}
	by, err := d.by(r)
	if err != nil {
		return err
	}
	m, do := d.cfg.Manager, r.PostForm.Get("do")
	if p := access.From(r.Context()); do == "release" && !p.Role.Allows(access.Admin) {
		return &fault{
			status: http.StatusForbidden, title: "This is not for you",
			detail: access.Refusal(p, access.Admin) + ". Ask an administrator.",
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
	_, err = action.run(r.Context(), id, by)
	d.forget()
	if err != nil {
		return err
	}
	path := "/entries/" + driver.FormatID(id)
	if in := r.PostForm.Get("in"); in != "" {
		path += "?in=" + url.QueryEscape(in) // keep the list
	}
	d.see(w, r, path, fmt.Sprintf("Entry %d: %s.", id, action.done))
	return nil
}

// payload downloads the payload of an entry: as a file, which no browser renders.
func (d *dashboard) payload(w http.ResponseWriter, r *http.Request) error {
	e, err := d.readEntry(r)
	if err != nil {
		return err
	}
	body := e.Body
	if n, err := strconv.Atoi(r.URL.Query().Get("revision")); err == nil && n >= 0 && n != e.Revision {
		if body, err = d.cfg.Manager.Body(r.Context(), e.ID, n); err != nil {
			return err
		}
	}
	shown := d.cfg.Visible(r.Context()).ShownBody(body)
	download(w, "application/octet-stream", fmt.Sprintf("entry-%d-revision-%d.bin", e.ID, body.Revision), shown.Payload)
	return nil
}
