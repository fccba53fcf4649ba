package dashboard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/payload"
)

// editData is the form that edits a message, and what the edit would change.
type editData struct {
	Entry *dlq.Entry
	// Payload is the text in the form. Why explains why it cannot be edited here; empty if it can.
	Payload, Why string
	Headers      []headerView
	// Added are the names and values of new headers, as typed.
	Added []headerView
	Note  string
	// Diff is what the edit changes, if requested; Problem why it is impossible.
	Diff    *payload.Diff
	Problem string
}

const (
	// maxEdited is the largest payload in a form.
	maxEdited = 512 << 10
	newRows   = 3
)

// editable explains why a payload cannot be edited as text; empty if it can. A form changes line ends, drops NUL, and
// only has text, and hidden values must not be replaced by their mask.
func editable(sees visible.View, body *dlq.Body) string {
	payload := body.Payload
	switch {
	case len(payload) > maxEdited:
		return fmt.Sprintf("The payload has %s, more than a form holds.", size(int64(len(payload))))
	case !utf8.Valid(payload) || bytes.IndexByte(payload, 0) >= 0:
		return "The payload is not text."
	case bytes.Contains(bytes.ReplaceAll(payload, []byte("\r\n"), nil), []byte("\r")),
		bytes.Contains(payload, []byte("\r\n")) &&
			bytes.Contains(bytes.ReplaceAll(payload, []byte("\r\n"), nil), []byte("\n")):
		return "The payload mixes line ends, which a form would change."
	case !bytes.Equal(sees.ShownBody(body).Payload, payload):
		return "A part of the payload is hidden from you, and saving would put the mask in its place."
	default:
		return ""
	}
}

// typed is what a person typed, with the line ends of the original payload: forms send CRLF.
func typed(text string, original []byte) []byte {
	if !bytes.Contains(original, []byte("\r\n")) {
		text = strings.ReplaceAll(text, "\r\n", "\n")
	}
	return []byte(text)
}

func (d *dashboard) editForm(w http.ResponseWriter, r *http.Request) error {
	full, err := d.readEntry(r)
	if err != nil {
		return err
	}
	data := editOf(full, d.cfg.Visible(r.Context()))
	return d.page(w, r, "edit", view{Title: fmt.Sprintf("Edit entry %d", full.ID), Nav: "entries", Data: data})
}

// editOf is the form of an entry before any edit.
func editOf(full *dlq.Entry, sees visible.View) *editData {
	data := &editData{Entry: sees.ShownEntry(full), Payload: string(full.Body.Payload), Why: editable(sees, full.Body)}
	if full.Status != dlq.Pending && full.Status != dlq.Parked {
		data.Why = fmt.Sprintf("The entry is %s: only pending and parked ones can be edited.", words(full.Status))
	}
	if data.Why != "" {
		data.Payload = ""
	}
	for name, value := range full.Body.Headers {
		if dlq.EditableHeader(name) && sees.Header(name, value) == value {
			data.Headers = append(data.Headers, headerView{Name: name, Value: value})
		}
	}
	slices.SortFunc(data.Headers, func(a, b headerView) int { return strings.Compare(a.Name, b.Name) })
	data.Added = make([]headerView, newRows)
	return data
}

// read reads the edit from the form.
func (e *editData) read(form url.Values, full *dlq.Entry) dlq.Edit {
	var edit dlq.Edit
	if e.Why == "" && form.Has("payload") {
		e.Payload = form.Get("payload")
		if payload := typed(e.Payload, full.Body.Payload); !bytes.Equal(payload, full.Body.Payload) {
			edit.Payload = payload
		}
	}
	set := map[string]string{}
	names, values := form["header"], form["value"]
	for i, name := range names {
		if i >= len(values) {
			break
		}
		before, there := full.Body.Headers[name]
		value := values[i]
		if there && !strings.Contains(before, "\r") {
			value = strings.ReplaceAll(value, "\r\n", "\n")
		}
		at := slices.IndexFunc(e.Headers, func(h headerView) bool { return h.Name == name })
		if at >= 0 {
			e.Headers[at].Value = value
		}
		if at >= 0 && there && value != before {
			set[name] = value
		}
	}
	added := form["new_header"]
	for i, name := range added {
		if i >= len(form["new_value"]) {
			break
		}
		row := headerView{Name: strings.TrimSpace(name), Value: form["new_value"][i]}
		if row.Name == "" {
			continue
		}
		set[row.Name] = row.Value
		if i < len(e.Added) {
			e.Added[i] = row
		}
	}
	for _, name := range form["remove"] {
		if slices.ContainsFunc(e.Headers, func(h headerView) bool { return h.Name == name }) {
			edit.RemoveHeaders = append(edit.RemoveHeaders, name)
			delete(set, name)
			for i := range e.Headers {
				if e.Headers[i].Name == name {
					e.Headers[i].Ours = true // ticked
				}
			}
		}
	}
	if len(set) > 0 {
		edit.SetHeaders = set
	}
	return edit
}

// savedNotSent reports that an edit is stored, but its message could not be sent back.
func savedNotSent(e *dlq.Entry, err error) error {
	id := driver.FormatID(e.ID)
	f := *faultOf(err)
	f.title = "Saved, but not sent"
	saved := fmt.Sprintf("Revision %d of entry %s is saved.", e.Revision, id)
	f.detail = saved + " The broker did not take its message: redrive the entry when the reason is mended."
	switch {
	case errors.Is(err, dlq.ErrPublish) && errors.Is(err, context.DeadlineExceeded):
		f.title = "Saved, but perhaps not sent"
		f.detail = saved + " The broker did not confirm its message, which may have been sent."
	case !errors.Is(err, dlq.ErrPublish):
		f.detail = saved + " Its message was not sent."
		f.reason = err.Error()
	}
	f.back, f.backLabel = "/entries/"+id, "Entry "+id
	return &f
}

// edit shows what would change, or changes it, and sends the message back if requested.
func (d *dashboard) edit(w http.ResponseWriter, r *http.Request) error {
	full, err := d.readEntry(r)
	if err != nil {
		return err
	}
	by, err := d.by(r)
	if err != nil {
		return err
	}
	sees := d.cfg.Visible(r.Context())
	data := editOf(full, sees)
	data.Note = by.Note
	edit := data.read(r.PostForm, full)
	if err := sees.Edit(&edit, full.Body); err != nil {
		return err
	}
	do := r.PostForm.Get("do")
	switch do {
	case "preview":
		return d.editAgain(w, r, data, edit, full.Body)
	case "save":
	case "redrive":
		err = d.cfg.Manager.MaySend(r.Context(), full.ID, by)
	default:
		err = invalid("action %q", do)
	}
	if err != nil {
		return err
	}
	revised, diff, err := d.cfg.Manager.Edit(r.Context(), full.ID, edit, by)
	d.forget()
	if err != nil {
		return err
	}
	if diff.Empty() && do == "save" {
		data.Problem = "Nothing is different: change something first."
		return d.editAgain(w, r, data, edit, full.Body)
	}
	said := fmt.Sprintf("Entry %d: revision %d saved. The original is kept.", revised.ID, revised.Revision)
	if do == "redrive" {
		by.Version = revised.Version
		if _, err := d.cfg.Manager.Redrive(r.Context(), full.ID, by); err != nil {
			return savedNotSent(revised, err)
		}
		said = fmt.Sprintf("Entry %d: revision %d sent back to its consumer; its outcome will show here.", full.ID,
			revised.Revision)
	}
	d.see(w, r, "/entries/"+driver.FormatID(full.ID), said)
	return nil
}

// editAgain is the form with what the edit would change, and with a problem, given or found.
func (d *dashboard) editAgain(w http.ResponseWriter, r *http.Request, data *editData, edit dlq.Edit,
	before *dlq.Body,
) error {
	after, err := d.cfg.Manager.ApplyEdit(r.Context(), edit, before)
	if err == nil {
		diff := d.cfg.Visible(r.Context()).Diff(before, after)
		data.Diff = &diff
	} else if data.Problem == "" {
		data.Problem = err.Error()
	}
	return d.page(w, r, "edit", view{Title: fmt.Sprintf("Edit entry %d", data.Entry.ID), Nav: "entries", Data: data})
}
