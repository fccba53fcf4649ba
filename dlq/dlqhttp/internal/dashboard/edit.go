package dashboard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/payload"
	"github.com/redrive-go/redrive/dlq/wire"
)

// editData is the form that edits a message, and what the edit would change.
type editData struct {
	Entry wire.Entry
	// Payload is the text in the form. Why explains why it cannot be edited here; empty if it can.
	Payload, Why string
	// Headers are those that can be changed; Ours marks those to remove. Added are new ones, as typed.
	Headers, Added []headerView
	Note           string
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
	text := string(body.Payload)
	lines := strings.ReplaceAll(text, "\r\n", "")
	switch {
	case len(text) > maxEdited:
		return fmt.Sprintf("The payload has %s, more than a form holds.", size(len(text)))
	case !utf8.ValidString(text) || strings.Contains(text, "\x00"):
		return "The payload is not text."
	case strings.Contains(lines, "\r"), len(lines) < len(text) && strings.Contains(lines, "\n"):
		return "The payload mixes line ends, which a form would change."
	case !sees.Whole(body):
		return "A part of the payload is hidden from you, and saving would put the mask in its place."
	default:
		return ""
	}
}

// typed is what a person typed, with the line ends of the original: forms send CRLF.
func typed(text, original string) string {
	if strings.Contains(original, "\r\n") {
		return text
	}
	return strings.ReplaceAll(text, "\r\n", "\n")
}

func (r *request) editForm() error {
	full, err := r.readEntry()
	if err != nil {
		return err
	}
	return r.editPage(editOf(full, r.sees))
}

func (r *request) editPage(data *editData) error {
	return r.page("edit", view{Title: fmt.Sprintf("Edit entry %d", data.Entry.ID), Nav: "entries", Data: data})
}

// editOf is the form of an entry before any edit.
func editOf(full *dlq.Entry, sees visible.View) *editData {
	data := &editData{Entry: sees.Entry(full), Why: editable(sees, full.Body), Added: make([]headerView, newRows)}
	if full.Status != dlq.Pending && full.Status != dlq.Parked {
		data.Why = fmt.Sprintf("The entry is %s: only pending and parked ones can be edited.", words(full.Status))
	}
	if data.Why == "" {
		data.Payload = string(full.Body.Payload)
	}
	for _, name := range slices.Sorted(maps.Keys(full.Body.Headers)) {
		value := full.Body.Headers[name]
		if dlq.EditableHeader(name) && sees.Header(name, value) == value {
			data.Headers = append(data.Headers, headerView{Name: name, Value: value})
		}
	}
	return data
}

// read reads the edit from the form. Fields of the same index belong together; headers that the form does not have
// cannot be changed.
func (e *editData) read(form url.Values, of *dlq.Body) dlq.Edit {
	edit := dlq.Edit{SetHeaders: map[string]string{}}
	if e.Why == "" && form.Has("payload") {
		e.Payload = form.Get("payload")
		if text := []byte(typed(e.Payload, string(of.Payload))); !bytes.Equal(text, of.Payload) {
			edit.Payload = text
		}
	}
	values := form["value"]
	for i, name := range form["header"][:min(len(form["header"]), len(values))] {
		at := slices.IndexFunc(e.Headers, func(h headerView) bool { return h.Name == name })
		if at < 0 {
			continue
		}
		h := &e.Headers[at]
		if value := typed(values[i], h.Value); value != of.Headers[name] {
			h.Value, edit.SetHeaders[name] = value, value
		}
	}
	for i, name := range form["new_header"][:min(len(form["new_header"]), len(form["new_value"]))] {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		edit.SetHeaders[name] = form["new_value"][i]
		if i < len(e.Added) {
			e.Added[i] = headerView{Name: name, Value: form["new_value"][i]}
		}
	}
	for i := range e.Headers {
		h := &e.Headers[i]
		if h.Ours = slices.Contains(form["remove"], h.Name); h.Ours {
			edit.RemoveHeaders = append(edit.RemoveHeaders, h.Name)
			delete(edit.SetHeaders, h.Name)
		}
	}
	return edit
}

// edit shows what would change, or changes it, and sends the message back if requested.
func (r *request) edit() error {
	full, err := r.readEntry()
	if err != nil {
		return err
	}
	data := editOf(full, r.sees)
	data.Note = r.by().Note
	edit := data.read(r.PostForm, full.Body)
	if err := r.sees.Edit(&edit, full.Body); err != nil {
		return err
	}
	switch do := r.PostForm.Get("do"); do {
	case "preview":
		return r.editAgain(data, edit, full.Body)
	case "redrive":
		sent, err := r.cfg.Manager.EditAndRedrive(r.Context(), full.ID, edit, r.by())
		r.forget()
		if err != nil && sent != nil {
			return savedNotSent(r.Context(), sent, err)
		}
		if err != nil {
			return err
		}
		return r.redirect(entryPath(full.ID), fmt.Sprintf(
			"Entry %d: revision %d sent back to its consumer; its outcome will show here.", full.ID, sent.Revision))
	case "save":
		revised, diff, err := r.cfg.Manager.Edit(r.Context(), full.ID, edit, r.by())
		r.forget()
		if err != nil {
			return err
		}
		if diff.Empty() {
			data.Problem = "Nothing is different: change something first."
			return r.editAgain(data, edit, full.Body)
		}
		return r.redirect(entryPath(full.ID),
			fmt.Sprintf("Entry %d: revision %d saved. The original is kept.", full.ID, revised.Revision))
	default:
		return invalid("action %q", do)
	}
}

// savedNotSent reports that an edit is stored, but its message could not be sent back.
func savedNotSent(ctx context.Context, e *dlq.Entry, err error) error {
	f := faultOf(ctx, err)
	f.Title = "Saved, but not sent"
	next := "The broker did not take its message: redrive the entry when the broker is back."
	switch {
	case errors.Is(err, dlq.ErrPublish) && errors.Is(err, context.DeadlineExceeded):
		f.Title, next = "Saved, but perhaps not sent", "The broker did not confirm its message, which may have been sent."
	case f.Status < http.StatusInternalServerError:
		next = fmt.Sprintf("Its message was not sent: %s.", err)
	case !errors.Is(err, dlq.ErrPublish):
		next = "Its message was not sent."
	}
	f.Detail = fmt.Sprintf("Revision %d of entry %d is saved. %s", e.Revision, e.ID, next)
	f.back, f.backLabel = entryPath(e.ID), "Entry "+driver.FormatID(e.ID)
	return f
}

// editAgain is the form with what the edit would change, and with a problem, given or found.
func (r *request) editAgain(data *editData, edit dlq.Edit, before *dlq.Body) error {
	after, err := r.cfg.Manager.ApplyEdit(r.Context(), edit, before)
	if err == nil {
		data.Diff = new(r.sees.Diff(before, after))
	} else if data.Problem == "" {
		data.Problem = err.Error()
	}
	return r.editPage(data)
}
