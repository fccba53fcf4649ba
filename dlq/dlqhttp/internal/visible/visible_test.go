package visible_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/payload"
	"github.com/redrive-go/redrive/dlq/redact"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// A difference shows the changes of visible text, and does not depend on hidden values: it confirms no guess.
func TestDiff(t *testing.T) {
	t.Parallel()
	rules, err := redact.New(redact.Config{Paths: []string{"$.cpf"}, Headers: []string{"auth"}})
	require.NoError(t, err)
	v := visible.New(rules, "admin", nil)
	body := func(payload, auth string) *dlq.Body {
		return &dlq.Body{Payload: []byte(payload), Headers: map[string]string{"auth": auth, "tenant": "a"}}
	}
	d := v.Diff(body(`{"cpf":"111","total":1}`, "old"), body(`{"cpf":"222","total":2}`, "new"))
	require.NotRegexp(t, "111|222|old|new", d.String())
	require.Contains(t, d.String(), `+  "total": 2`)
	for _, guess := range []string{"111", "222", "33333"} {
		d = v.Diff(body(`{"cpf":"111"}`, "x"), body(`{"cpf":"`+guess+`"}`, guess))
		require.Equal(t, v.Diff(body(`{"cpf":"111"}`, "x"), body(`{"cpf":"111"}`, "x")), d, guess)
	}
	added := v.Diff(&dlq.Body{}, body(``, "new"))
	require.NotContains(t, added.String(), "new")
}

// Whether an edit has an effect would confirm a guess: hidden text cannot be edited, whether it exists or not.
func TestEdit(t *testing.T) {
	t.Parallel()
	rules, err := redact.New(redact.Config{
		Paths: []string{"$.cpf"}, Headers: []string{"auth"},
		Texts: []string{`\d{4}-\d{4}`},
	})
	require.NoError(t, err)
	v := visible.New(rules, "admin", nil)
	const kind = "application/json; charset=utf-7"
	body := &dlq.Body{Payload: []byte(`{"cpf":"111","card":"1234+AC0-5678"}`), ContentType: kind, Headers: map[string]string{
		"card": "1234-5678", "tenant": "a", envelope.KeyContentType: kind,
	}}
	for name, edit := range map[string]dlq.Edit{
		"the whole payload, guessed": {Payload: []byte(`{"cpf":"111"}`)},
		"the mask":                   {Payload: []byte(`{"cpf":"[redacted]"}`)},
		"jq":                         {JQ: "."},
		"a header it does not have":  {SetHeaders: map[string]string{"auth": "x"}},
		"a header with hidden text":  {SetHeaders: map[string]string{"card": "1"}},
		"hidden text":                {SetHeaders: map[string]string{"tenant": "1234-5678"}},
		"removing":                   {RemoveHeaders: []string{"auth"}},
		"another character set":      {SetHeaders: map[string]string{envelope.KeyContentType: "text/plain"}},
		"no character set":           {RemoveHeaders: []string{envelope.KeyContentType}},
	} {
		var refused *visible.RefusedError
		require.ErrorAs(t, v.Edit(&edit, body), &refused, name)
		require.NoError(t, visible.View{}.Edit(&edit, body), name)
	}
	require.NoError(t, v.Edit(&dlq.Edit{SetHeaders: map[string]string{"tenant": "b"}}, body))
	require.NoError(t, v.Edit(&dlq.Edit{Payload: []byte(`{"total":2}`)}, &dlq.Body{Payload: []byte(`{"total":1}`)}))

	// A content type can be corrected when that reveals nothing: the payload is hidden or visible as before, or no part of
	// it was hidden.
	for name, test := range map[string]struct{ payload, before, after string }{
		"not JSON":            {"\x08\x96\x01", "application/json", "application/x-protobuf"},
		"none before":         {"\x08\x96\x01", "", "application/x-protobuf"},
		"none after":          {"\x08\x96\x01", "application/x-protobuf", ""},
		"a long one":          {"\x08\x96\x01", "a/" + strings.Repeat("x", 100), "b/" + strings.Repeat("x", 100)},
		"whole, then hidden":  {`{"total":1}`, "application/json", kind},
		"the same part of it": {`{"cpf":"111"}`, "application/json", "text/json"},
	} {
		edit := dlq.Edit{SetHeaders: map[string]string{envelope.KeyContentType: test.after}}
		require.NoError(t, v.Edit(&edit, &dlq.Body{Payload: []byte(test.payload), ContentType: test.before}), name)
	}
}

// The error of a jq expression quotes the payload, also the beginning of a value, which no pattern matches: a hidden
// value is neither in the detail of the skipped entry nor in a preview or a review.
func TestHiddenValues_FailedEdits(t *testing.T) {
	t.Parallel()
	body := &dlq.Body{Payload: []byte(`{"card":{"number":"4111222233334444"}}`)}
	_, err := payload.Edit(t.Context(), &payload.InProcess{}, ".card.number.x = 1", body)
	require.ErrorContains(t, err, `"411122 ...`)
	paths, errPaths := redact.New(redact.Config{Paths: []string{"$.card.number"}})
	texts, errTexts := redact.New(redact.Config{Texts: []string{`\d{16}`}})
	headers, errHeaders := redact.New(redact.Config{Headers: []string{"authorization"}})
	require.NoError(t, errors.Join(errPaths, errTexts, errHeaders))
	samples := []redrive.Sample{{Entry: dlq.Entry{Body: body}, Problem: err.Error()}}
	items := []redrive.Item{
		{RunItem: wire.RunItem{State: wire.ItemSkipped, Detail: wire.NotEdited + err.Error()}},
		{RunItem: wire.RunItem{State: wire.ItemFailed, Detail: "timeout"}},
	}
	for name, test := range map[string]struct {
		rules *redact.Rules
		shown string
	}{
		"paths":   {paths, redact.Mask},
		"texts":   {texts, redact.Mask},
		"headers": {headers, err.Error()},
		"nothing": {nil, err.Error()},
	} {
		v := visible.New(test.rules, "admin", nil)
		shown := v.Items(items)
		require.Equal(t, []string{wire.NotEdited + test.shown, "timeout"}, []string{shown[0].Detail, shown[1].Detail}, name)
		preview := v.Preview(&redrive.Preview{Sample: samples})
		require.Equal(t, test.shown, preview.Sample[0].Problem, name)
		review := v.Review(&redrive.Review{Run: &redrive.Run{}, Sample: samples}, time.Time{})
		require.Equal(t, test.shown, review.Sample[0].Problem, name)
	}
}

// How many hidden values there are changes nothing: what looks the same is one row, found, counted and sorted as one.
func TestHiddenValues_ManyLookLikeOne(t *testing.T) {
	t.Parallel()
	rules, err := redact.New(redact.Config{Texts: []string{`\w+@\w+`}})
	require.NoError(t, err)
	v := visible.New(rules, "admin", nil)
	at := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	group := func(id, cause string, counts driver.Counts) driver.Group {
		return driver.Group{Fingerprint: id, Cause: cause, Handler: "pay", Counts: counts, FirstSeen: at, LastSeen: at}
	}
	plain := group("plain", "timeout", driver.Counts{Pending: 4})
	one := []driver.Group{plain, group("a", "no account of ana@x", driver.Counts{Pending: 5, Resolved: 1})}
	many := []driver.Group{
		plain, group("b", "no account of bob@x", driver.Counts{Pending: 3}),
		group("c", "no account of ana@x", driver.Counts{Pending: 2}),
		group("d", "no account of eve@x", driver.Counts{Resolved: 1}),
	}
	for _, status := range []driver.Status{"", driver.Pending, driver.Resolved} {
		wide, shown := v.Causes(driver.GroupQuery{Status: status, Limit: 1})
		require.Equal(t, driver.GroupQuery{Limit: wire.MaxGroups}, wide, "nothing is left out before they become one")
		require.Equal(t, shown(one), shown(many), status)
		require.NotEqual(t, "plain", shown(many)[0].Fingerprint, "with the most entries")
	}
	topics := func(topics ...wire.TopicCount) (wire.RunPreview, wire.RunReview) {
		return v.Preview(&redrive.Preview{RunPreview: wire.RunPreview{Topics: topics}}),
			v.Review(&redrive.Review{Run: &redrive.Run{}, Topics: topics}, at)
	}
	firstPreview, firstReview := topics(wire.TopicCount{Topic: "of ana@x", Count: 5},
		wire.TopicCount{Topic: "t", Count: 4})
	preview, review := topics(wire.TopicCount{Topic: "t", Count: 4}, wire.TopicCount{Topic: "of bob@x", Count: 3},
		wire.TopicCount{Topic: "of ana@x", Count: 2})
	require.Equal(t, firstPreview, preview)
	require.Equal(t, firstReview, review)
	counts := func(names ...wire.NamedCounts) wire.Stats { return v.Stats(&driver.Stats{ByType: names}) }
	require.Equal(t,
		counts(wire.NamedCounts{Name: "ana@x", Counts: driver.Counts{Pending: 5}},
			wire.NamedCounts{Name: "t", Counts: driver.Counts{Pending: 4}}),
		counts(wire.NamedCounts{Name: "t", Counts: driver.Counts{Pending: 4}},
			wire.NamedCounts{Name: "bob@x", Counts: driver.Counts{Pending: 3}},
			wire.NamedCounts{Name: "ana@x", Counts: driver.Counts{Pending: 2}}))
	rule := v.Rules([]redrive.Rule{{Name: "r", CauseText: "ana@x", Fingerprint: "a"}})[0]
	require.Equal(t, redrive.Rule{Name: "r", CauseText: redact.Mask, Fingerprint: redact.Mask}, rule)
}
