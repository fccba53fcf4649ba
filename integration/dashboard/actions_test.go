package dashboard_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

// Every button of an entry does what its label says, and records the user and the given reason.
func TestEntry_Buttons(t *testing.T) {
	s := newSite(t)
	ids := s.put(t, 4)
	b := s.open(t, "ana:operator")
	press := func(id int64, do, note string) {
		b.visit(fmt.Sprintf("/entries/%d", id))
		b.fill(`form.actions input[name=note]`, note)
		b.follow(`form.actions button[value=` + do + `]`)
		b.wait(`document.querySelector(".flash")`)
	}
	press(ids[0], "resolve", "paid by hand")
	require.Equal(t, dlq.Resolved, s.entry(t, ids[0]).Status)
	record := s.last(t, ids[0])
	require.Equal(t, []any{"ana", driver.ActionResolve, "paid by hand"}, []any{record.Actor, record.Action, record.Note})
	b.has("paid by hand")
	press(ids[0], "restore", "not paid")
	require.Equal(t, dlq.Pending, s.entry(t, ids[0]).Status)
	press(ids[1], "discard", "")
	require.Equal(t, dlq.Discarded, s.entry(t, ids[1]).Status)
	press(ids[2], "park", "")
	require.Equal(t, dlq.Parked, s.entry(t, ids[2]).Status)

	press(ids[3], "redrive", "the bank is open")
	e := s.becomes(t, ids[3], dlq.Resolved)
	require.Equal(t, "redrive", e.ResolvedBy)
	require.Equal(t, []string{string(e.Body.Payload)}, s.handled())
	b.has("The consumer handled it") // without a reload: the page refreshes automatically
	require.Contains(t, b.text(), "Redriven")
	require.Equal(t, 0, eval[int](b, `document.querySelectorAll("form.actions button[value=redrive]").length`))

	// The flash is shown once.
	b.visit(fmt.Sprintf("/entries/%d", ids[3]))
	require.Equal(t, 0, eval[int](b, `document.querySelectorAll(".flash").length`))
}

// An admin can end the wait for an outcome that will not arrive, and has to give a reason; no other role has the
// button.
func TestEntry_Release(t *testing.T) {
	s := newSite(t)
	id := s.put(t, 1)[0]
	at := time.Now()
	results, err := s.letters.Store().Change(t.Context(), driver.Change{
		Action: driver.ActionRedrive, IDs: []int64{id}, Actor: "bob", At: at, Lease: time.Hour,
	})
	require.NoError(t, err)
	require.NoError(t, results[0].Err)
	page := fmt.Sprintf("/entries/%d", id)
	const button = `form.actions button[value=release]`
	for _, role := range []string{"viewer", "operator", "approver"} {
		b := s.open(t, "ana:"+role)
		b.visit(page)
		b.has("Sent back to its consumer")
		require.Equal(t, 0, eval[int](b, "document.querySelectorAll(`"+button+"`).length"), role)
	}
	b := s.open(t, "ana:admin")
	b.visit(page)
	b.click(button)
	require.Equal(t, dlq.Retrying, s.entry(t, id).Status, "the browser requires the note")
	b.fill(`form.actions input[name=note]`, "the queue has no consumer any more")
	b.follow(button)
	b.wait(`document.querySelector(".flash")`)
	require.Equal(t, dlq.Pending, s.entry(t, id).Status)
	record := s.last(t, id)
	require.Equal(t, []any{"ana", driver.ActionReleaseByHand, "the queue has no consumer any more"},
		[]any{record.Actor, record.Action, record.Note})
	b.has("Released: its outcome is not waited for")
	require.Equal(t, 0, eval[int](b, "document.querySelectorAll(`"+button+"`).length"))
}

// A redriven message that dies again returns to its entry, with both errors on the timeline.
func TestEntry_DiesAgain(t *testing.T) {
	s := newSite(t)
	id := s.put(t, 1)[0]
	first := s.entry(t, id).ErrorMessage
	s.breaks(func(*message.Message) error { return errStillBroken })
	b := s.open(t, "ana:operator")
	b.visit(fmt.Sprintf("/entries/%d", id))
	b.follow(`button[value=redrive]`)
	b.has("Died again")
	text := eval[string](b, `document.querySelector(".timeline").innerText`)
	require.Contains(t, text, first)
	require.Contains(t, text, errStillBroken.Error())
	require.Equal(t, 1, s.entry(t, id).RedriveCount)
}

// If another user was faster, the page names them and changes nothing.
func TestEntry_Conflict(t *testing.T) {
	s := newSite(t)
	id := s.put(t, 1)[0]
	b := s.open(t, "ana:operator")
	b.expect("409")
	b.visit(fmt.Sprintf("/entries/%d", id))
	b.click(`[data-do=pause]`)
	_, err := s.manager.Discard(t.Context(), id, dlq.By{Actor: "bob"})
	require.NoError(t, err)
	b.follow(`button[value=resolve]`)
	b.has("Someone else was faster")
	require.Contains(t, b.text(), "by bob")
	require.Equal(t, dlq.Discarded, s.entry(t, id).Status)
}

// An operator fixes a payload, sees the difference, and redrives it; the consumer gets the fixed bytes, and the
// original is kept.
func TestEntry_EditAndRedrive(t *testing.T) {
	s := newSite(t)
	id := s.put(t, 1)[0]
	before := string(s.entry(t, id).Body.Payload)
	fixed := strings.Replace(before, `"currency":null`, `"currency":"EUR"`, 1)
	b := s.open(t, "ana:operator")
	b.visit(fmt.Sprintf("/entries/%d/edit", id))
	require.Equal(t, before, eval[string](b, `document.querySelector("textarea[name=payload]").value`))
	b.fill(`textarea[name=payload]`, "{broken")
	b.wait(`document.querySelector("[data-json-state]").innerText.startsWith("Not JSON")`)
	b.click(`[data-do=format]`)
	require.Equal(t, "{broken", eval[string](b, `document.querySelector("textarea[name=payload]").value`),
		"text that is not JSON is not changed")
	const exact = `{"a":[],"b":{},"n":12345678901234567890.10,"s":"x \" {,: y","a":[1,{"c":null}]}`
	b.fill(`textarea[name=payload]`, exact)
	b.click(`[data-do=format]`)
	formatted := eval[string](b, `document.querySelector("textarea[name=payload]").value`)
	var compact bytes.Buffer
	require.NoError(t, json.Compact(&compact, []byte(formatted)))
	require.Equal(t, exact, compact.String(), "formatting does not round numbers or drop keys") //nolint:testifylint // JSONEq would do both
	require.Contains(t, formatted, "{\n  \"a\": [],\n  \"b\": {},\n")
	b.fill(`textarea[name=payload]`, fixed)
	b.wait(`document.querySelector("[data-json-state]").innerText === "Valid JSON."`)
	b.fill(`input[name=new_header]`, "repaired-by")
	b.fill(`input[name=new_value]`, "ana")
	b.follow(`button[value=preview]`)
	diff := eval[string](b, `document.querySelector("#diff").innerText`)
	require.Contains(t, diff, `"currency": null`)
	require.Contains(t, diff, `"currency": "EUR"`)
	require.Contains(t, diff, "repaired-by: ana")
	require.Equal(t, 0, s.entry(t, id).Revision, "viewing changes nothing")

	b.fill(`.sticky input[name=note]`, "added the currency")
	b.follow(`button[value=redrive]`)
	e := s.becomes(t, id, dlq.Resolved)
	require.Equal(t, []string{fixed}, s.handled())
	require.Equal(t, 1, e.Revision)
	require.Equal(t, "ana", e.Body.Headers["repaired-by"])
	original, err := s.manager.Body(t.Context(), id, 0)
	require.NoError(t, err)
	require.Equal(t, before, string(original.Payload))
	b.has("revision 1")
	b.visit(fmt.Sprintf("/entries/%d?revision=0", id))
	require.Contains(t, eval[string](b, `document.querySelector("#raw").textContent`), `"currency":null`)
}

// An unedited payload keeps its bytes although forms change line endings, and a payload that a form would damage cannot
// be edited in one.
func TestEntry_EditKeepsBytes(t *testing.T) {
	s := newSite(t)
	payloads := []string{"\n\n{\n  \"a\": 1\n}\n", "a\r\nb\r\n", "tab\there \u00e9\U0001F600\u2028"}
	var ids []int64
	for i, payload := range payloads {
		ids = append(ids, s.put(t, 1, func(d *envelope.DeadLetter) {
			d.Message.UUID = fmt.Sprint("exact-", i)
			d.Message.Metadata[envelope.KeyMessageID] = d.Message.UUID
			d.Message.Payload = []byte(payload)
		})[0])
	}
	b := s.open(t, "ana:operator")
	for i, id := range ids {
		b.visit(fmt.Sprintf("/entries/%d/edit", id))
		b.fill(`input[name=new_header]`, "seen")
		b.fill(`input[name=new_value]`, "yes")
		b.follow(`button[value=save]`)
		e := s.entry(t, id)
		require.Equal(t, 1, e.Revision)
		require.Equal(t, payloads[i], string(e.Body.Payload))
		require.Equal(t, "yes", e.Body.Headers["seen"])
	}
	binary := s.put(t, 1, func(d *envelope.DeadLetter) {
		d.Message.UUID, d.Message.Payload = "binary", []byte{0xff, 0x00, 0x01}
		d.Message.Metadata[envelope.KeyMessageID] = "binary"
	})[0]
	b.visit(fmt.Sprintf("/entries/%d/edit", binary))
	require.Contains(t, b.text(), "not text")
	require.Equal(t, 0, eval[int](b, `document.querySelectorAll("textarea[name=payload]").length`))
}

// Only the ticked entries of a page are changed, after a page that shows their number.
func TestEntries_Ticked(t *testing.T) {
	s := newSite(t)
	ids := s.put(t, 6)
	b := s.open(t, "ana:operator")
	b.visit("/entries")
	for _, id := range ids[1:4] {
		b.click(fmt.Sprintf(`input[name=pick][value="%d"]`, id))
	}
	b.wait(`document.querySelector("[data-picked]").innerText === "3 selected"`)
	b.follow(`button[value=discard]`)
	require.Contains(t, b.text(), "Discard 3 entries?")
	for _, id := range ids {
		require.Equal(t, dlq.Pending, s.entry(t, id).Status, "the number is shown first")
	}
	b.fill(`input[name=note]`, "test orders")
	b.follow(`form[method=post] button`)
	b.has("3 entries discarded.")
	for i, id := range ids {
		want := dlq.Pending
		if i >= 1 && i < 4 {
			want = dlq.Discarded
			require.Equal(t, "test orders", s.last(t, id).Note)
		}
		require.Equal(t, want, s.entry(t, id).Status)
	}
}

// All matching entries are changed, not only those on the page, but none that are stored after they were counted.
func TestEntries_AllMatches(t *testing.T) {
	s := newSite(t)
	s.put(t, 130)
	matching, err := s.manager.Count(t.Context(), dlq.Filter{ErrorText: "bank"}, 0)
	require.NoError(t, err)
	require.Greater(t, matching, int64(50), "more than a page")
	b := s.open(t, "ana:operator")
	b.visit("/entries?status=PENDING&q=bank")
	b.click(`input[name=scope][value=all]`)
	b.follow(`button[value=resolve]`)
	require.Contains(t, b.text(), fmt.Sprintf("Resolve %d entries?", matching))
	receipts, err := s.letters.Store().Put(t.Context(), letter(999, time.Now().Add(time.Minute), cause("bank: late")))
	require.NoError(t, err)
	b.follow(`form[method=post] button`)
	b.has(fmt.Sprintf("%d entries resolved.", matching))
	stats, err := s.manager.Stats(t.Context(), dlq.StatsQuery{})
	require.NoError(t, err)
	require.Equal(t, driver.Counts{Pending: 131 - matching, Resolved: matching}, stats.Counts)
	require.Equal(t, dlq.Pending, s.entry(t, receipts[0].ID).Status)
}

// Filters are part of the URL, and the page shows the entries that the store selects.
func TestEntries_Filters(t *testing.T) {
	s := newSite(t)
	s.put(t, 120)
	b := s.open(t, "ana:viewer")
	b.visit("/entries?status=any")
	b.fill(`input[name=q]`, "bank")
	b.fill(`input[name=payload]`, `"vip":true`)
	b.click(`details summary`)
	b.fill(`input[name=handler]`, "charge")
	b.follow(`.filters button[type=submit]`)
	where := eval[string](b, `location.search`)
	for _, part := range []string{"q=bank", "payload=%22vip%22%3Atrue", "handler=charge", "status=any"} {
		require.Contains(t, where, part)
	}
	l, err := s.manager.List(t.Context(), dlq.Filter{ErrorText: "bank", PayloadText: `"vip":true`, Handler: "charge"},
		dlq.Page{})
	require.NoError(t, err)
	require.NotEmpty(t, l.Entries)
	var want []string
	for i := range l.Entries {
		want = append(want, driver.FormatID(l.Entries[i].ID))
	}
	require.Equal(t, want, eval[[]string](b, `[...document.querySelectorAll("td a.id")].map((a) => a.innerText)`))
	b.follow(`.chip[aria-label*=handler]`)
	require.NotContains(t, eval[string](b, `location.search`), "handler")
	require.Equal(t, 0, eval[int](b, `document.querySelectorAll("input[name=pick]").length`), "a viewer selects nothing")

	// Each page continues where the previous one ended.
	b.visit("/entries?status=any")
	seen := eval[[]string](b, `[...document.querySelectorAll("td a.id")].map((a) => a.innerText)`)
	for range 2 {
		b.follow(`a[rel=next]`)
		seen = append(seen, eval[[]string](b, `[...document.querySelectorAll("td a.id")].map((a) => a.innerText)`)...)
	}
	require.Len(t, seen, 120)
	unique := map[string]bool{}
	for _, id := range seen {
		unique[id] = true
	}
	require.Len(t, unique, 120)
}

// A field of the payload filters entries, and an action on all matches applies only to these, because the confirmation
// page keeps the field.
func TestEntries_PayloadField(t *testing.T) {
	s := newSite(t)
	ids := s.put(t, 12)
	b := s.open(t, "ana:operator")
	b.visit("/entries?status=PENDING")
	b.fill(`input[name=field]`, "customer.id = c-7")
	b.follow(`.filters button[type=submit]`)
	shown := `[...document.querySelectorAll("td a.id")].map((a) => a.innerText)`
	require.Equal(t, []string{driver.FormatID(ids[7])}, eval[[]string](b, shown))
	require.Equal(t, "customer.id=c-7", eval[string](b, `document.querySelector("input[name=field]").value`))
	b.visit("/entries?status=PENDING&field=customer.vip%3Dtrue&field=items.quantity%3D2")
	require.Equal(t, []string{driver.FormatID(ids[5])}, eval[[]string](b, shown))
	b.click(`input[name=scope][value=all]`)
	b.follow(`button[value=discard]`)
	require.Contains(t, b.text(), "Discard 1 entry?")
	require.Contains(t, b.text(), "customer.vip=true")
	b.follow(`form[method=post] button`)
	b.has("1 entry discarded.")
	for i, id := range ids {
		require.Equal(t, i == 5, s.entry(t, id).Status == dlq.Discarded, id)
	}
	b.expect("422")
	b.visit("/entries?field=customer")
	require.Contains(t, b.text(), "customer.id=42", "the syntax of a field")
}

// An entry links to related entries: those of its flow by correlation id, and those of its trace by the headers.
func TestEntry_LinksToRelatedEntries(t *testing.T) {
	s := newSite(t)
	ids := s.put(t, 6) // three per flow
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-"
	travelled := s.put(t, 2, messageIDs("traced"), func(d *envelope.DeadLetter) {
		d.Message.Metadata[envelope.KeyTraceParent] = trace + d.Message.UUID[len(d.Message.UUID)-12:] + "0001-01"
	})
	b := s.open(t, "ana:viewer")
	shown := `[...document.querySelectorAll("td a.id")].map((a) => a.innerText).sort()`
	b.visit(fmt.Sprintf("/entries/%d", ids[4]))
	b.follow(`a[href*="correlation="]`)
	require.Equal(t, []string{driver.FormatID(ids[3]), driver.FormatID(ids[4]), driver.FormatID(ids[5])},
		eval[[]string](b, shown))
	b.visit(fmt.Sprintf("/entries/%d", travelled[0]))
	b.follow(`a[href*="trace="]`)
	require.Equal(t, []string{driver.FormatID(travelled[0]), driver.FormatID(travelled[1])}, eval[[]string](b, shown))
	require.Equal(t, 0, eval[int](b, `document.querySelectorAll(".refresh").length`),
		"this search reads every entry's headers, so it does not refresh")
}

// A note on a cause is shown on its page; a known cause can be muted for some time, which the list shows.
func TestGroup_NoteAndMute(t *testing.T) {
	s := newSite(t)
	fingerprint := s.entry(t, s.put(t, 1)[0]).Fingerprint
	b := s.open(t, "ana:operator")
	b.visit("/groups/" + fingerprint)
	b.fill(`#about input[name=note]`, "the bank knows, ticket 4711")
	b.follow(`#about button[value=note]`)
	b.wait(`document.querySelector("#about .samples").innerText.includes("ticket 4711")`)
	b.fill(`#about input[name=note]`, "until Monday")
	eval[bool](b, `(document.querySelector("#about select").value = "168h0m0s", true)`)
	b.follow(`#about button[value=mute]`)
	b.wait(`document.querySelector("#about .banner").innerText.includes("until Monday")`)
	mutes, err := s.manager.Mutes(t.Context())
	require.NoError(t, err)
	require.Len(t, mutes, 1)
	require.Equal(t, []any{fingerprint, "ana", 7 * 24 * time.Hour},
		[]any{mutes[0].Fingerprint, mutes[0].By, mutes[0].Until.Sub(mutes[0].At)})
	b.visit("/groups")
	require.Contains(t, eval[string](b, `document.querySelector("tbody tr").innerText`), "muted")
	b.visit("/groups/" + fingerprint)
	b.follow(`#about button[value=unmute]`)
	b.wait(`!document.querySelector("#about .banner")`)
	mutes, err = s.manager.Mutes(t.Context())
	require.NoError(t, err)
	require.Empty(t, mutes)

	b = s.open(t, "eve:viewer")
	b.visit("/groups/" + fingerprint)
	require.Contains(t, b.text(), "ticket 4711")
	require.Equal(t, 0, eval[int](b, `document.querySelectorAll("#about form").length`))
}

// A whole cause is discarded from its page.
func TestGroup_Discard(t *testing.T) {
	s := newSite(t)
	s.put(t, 30)
	groups, err := s.manager.Groups(t.Context(), dlq.GroupQuery{Status: dlq.Pending})
	require.NoError(t, err)
	b := s.open(t, "ana:operator")
	b.visit("/groups")
	b.follow(`tbody tr a`)
	require.Contains(t, b.text(), groups[0].Cause)
	b.follow(`a[href*="do=discard"]`)
	b.follow(`form[method=post] button`)
	b.has("entries discarded.")
	after, err := s.manager.Groups(t.Context(), dlq.GroupQuery{Fingerprint: groups[0].Fingerprint})
	require.NoError(t, err)
	require.Equal(t, driver.Counts{Discarded: groups[0].Counts.Pending}, after[0].Counts)
}

// A purge is previewed, asks for confirmation, and moves the previewed entries into the archive.
func TestRetention(t *testing.T) {
	s := newSite(t)
	ids := s.put(t, 10)
	long := time.Now().Add(-100 * 24 * time.Hour).UTC().Truncate(time.Microsecond)
	var old []*dlq.Entry
	for n := range 4 {
		e := letter(100+n, long)
		e.Status, e.Version, e.ResolvedAt, e.ResolvedBy, e.ChangedAt, e.ChangedBy = dlq.Resolved, 2, long, "ana", long, "ana"
		old = append(old, e)
	}
	receipts, err := s.letters.Store().Put(t.Context(), old...)
	require.NoError(t, err)
	_, err = s.manager.Resolve(t.Context(), ids[0], dlq.By{Actor: "ana"})
	require.NoError(t, err)

	b := s.open(t, "bob:approver")
	b.visit("/retention?days=90&resolved=1&archive=1")
	require.Contains(t, b.text(), "4 entries")
	require.Contains(t, b.text(), "Only admins can purge")
	b = s.open(t, "root:admin")
	b.visit("/retention")
	b.follow(`form[method=get] button`)
	require.Contains(t, b.text(), "4 entries")
	b.fill(`form[method=post] input[name=note]`, "older than 90 days")
	b.click(`form[method=post] button`) // the browser does not submit it because the box is not ticked
	require.Equal(t, dlq.Resolved, s.entry(t, receipts[0].ID).Status)
	b.click(`input[name=sure]`)
	b.follow(`form[method=post] button`)
	b.has("4 entries purged into the archive.")
	for _, r := range receipts {
		_, err := s.manager.Get(t.Context(), r.ID)
		require.ErrorIs(t, err, dlq.ErrNotFound)
	}
	require.Equal(t, dlq.Resolved, s.entry(t, ids[0]).Status, "it is not old enough")
	back, err := s.manager.Unarchive(t.Context(), dlq.By{Actor: "root"}, receipts[0].ID)
	require.NoError(t, err)
	require.Equal(t, []int64{receipts[0].ID}, back)
	b.visit("/audit?action=purge")
	require.Contains(t, b.text(), "older than 90 days")
}
