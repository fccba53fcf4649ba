package dashboard

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

var noon = time.Date(2026, 11, 21, 12, 34, 56, 0, time.UTC)

// A list is a link: parsing the link gives the same list.
func TestSearch_RoundTrip(t *testing.T) {
	two := 2
	s := search{Order: driver.OldestFirst, Filter: dlq.Filter{
		IDs: []int64{3, 5}, Statuses: []dlq.Status{dlq.Pending, dlq.Parked}, Topic: "orders & more", Consumer: "billing",
		EventType: "order.placed",
		Handler:   "charge", Reason: "permanent", ErrorClass: "*bank.Error", ErrorCode: "504",
		Fingerprint: "df200c5f5f239a94",
		EventID:     "m-1",
		SourceTable: "orders", SourceID: "17", CorrelationID: "c", ErrorText: `"><script>`, PayloadText: "a=b&c",
		CauseText: "bank",
		TraceID:   "4bf92f3577b34da6a3ce929d0e0e4736",
		PayloadFields: []wire.PayloadField{
			{Path: []string{"customer", "id"}, Value: "42"},
			{Path: []string{"a.b"}, Value: `"x & y"`},
		},
		From: noon.Add(-time.Hour), To: noon, Redrives: &two, Run: "r-1",
	}}
	q, err := url.ParseQuery(string(s.Query()))
	require.NoError(t, err)
	back, err := parseSearch(q, noon)
	require.NoError(t, err)
	require.Equal(t, s, back)
	require.Len(t, s.Fields(), len(strings.Split(string(s.Query()), "&")))

	moving, err := parseSearch(url.Values{"since": {"24h"}}, noon)
	require.NoError(t, err)
	require.Equal(t, noon.Add(-24*time.Hour).Truncate(time.Minute), moving.Filter.From)
	frozen := moving.Frozen(noon)
	require.Empty(t, frozen.Since)
	require.Equal(t, noon.Add(time.Second), frozen.Filter.To, "what arrives after the count is not acted on")
	require.NotContains(t, string(moving.Query()), "from=")
	require.Contains(t, string(frozen.Query()), "from=")
}

func TestSearch_Nonsense(t *testing.T) {
	for _, query := range []string{
		"status=NEW", "id=x", "id=-1", "from=yesterday", "to=2026-13-01", "since=soon",
		"since=-3h", "redrives=some", "redrives=-1", "field=customer", "field==1", "from=2026-02-02&to=2026-02-01",
	} {
		q, err := url.ParseQuery(query)
		require.NoError(t, err)
		_, err = parseSearch(q, noon)
		require.ErrorIs(t, err, dlq.ErrInvalid, query)
	}
}

// Ticked entries and matching ones are distinct: all of a filter is never more than the filter.
func TestChosen(t *testing.T) {
	all, err := chosen(url.Values{"scope": {"all"}, "id": {"3", "4"}, "pick": {"9"}, "topic": {"orders"}}, noon)
	require.NoError(t, err)
	require.Equal(t, []int64{3, 4}, all.Filter.IDs)
	require.Equal(t, "orders", all.Filter.Topic)
	picked, err := chosen(url.Values{"scope": {"page"}, "pick": {"9", "10"}, "topic": {"orders"}}, noon)
	require.NoError(t, err)
	require.Equal(t, dlq.Filter{IDs: []int64{9, 10}}, picked.Filter)
	_, err = chosen(url.Values{"scope": {"page"}, "topic": {"orders"}}, noon)
	require.ErrorContains(t, err, "Nothing is selected")
}

// Coloured JSON is the same text, for any content.
func TestTokens(t *testing.T) {
	for _, text := range []string{
		`{"a": "b", "c": [1, -2.5e+10, true, false, null, {}], "d\"e": "f\\", "": ""}`, `"text"`, `12`, `[]`, `null`,
		`{"<script>": "</script><b>\u003c", "nested": {"deep": [[["x"]]]}}`,
	} {
		require.True(t, json.Valid([]byte(text)))
		view := viewPayload([]byte(text))
		require.True(t, view.JSON)
		var joined strings.Builder
		for _, token := range view.Tokens {
			joined.WriteString(token.Text)
		}
		require.JSONEq(t, text, joined.String())
	}
	require.Equal(t, []token{{"", "{"}, {"k", `"a"`}, {"", ":"}, {"n", "1"}, {"", "}"}}, tokens(`{"a":1}`))
	require.NotEmpty(t, viewPayload([]byte{0xff, 0}).Dump)
	require.False(t, viewPayload([]byte("plain")).JSON)
	require.True(t, viewPayload(make([]byte, maxShown+1)).Cut)
}

// A form sends CRLF: an untouched text keeps its bytes.
func TestTyped(t *testing.T) {
	for _, original := range []string{"{\n \"a\": 1\n}\n", "a\r\nb\r\n", "", "\n", "one line", "\u2028é😀"} {
		require.Empty(t, editable(visible.View{}, &dlq.Body{Payload: []byte(original)}))
		sent := strings.ReplaceAll(strings.ReplaceAll(original, "\r\n", "\n"), "\n", "\r\n") // as browsers do
		require.Equal(t, original, typed(sent, original))
	}
	for _, original := range []string{"a\rb", "a\r\nb\nc", "a\x00b", "\xff", strings.Repeat("x", maxEdited+1)} {
		require.NotEmpty(t, editable(visible.View{}, &dlq.Body{Payload: []byte(original)}), "%.20q", original)
	}
}

func TestCurve(t *testing.T) {
	hour := noon.Truncate(time.Hour)
	hours := []wire.HourCount{{Hour: hour.Add(-200 * time.Hour), Count: 9}, {
		Hour:  hour.Add(-time.Hour),
		Count: 60, Closed: 6,
	}, {Hour: hour, Count: 8, DiedAgain: 2}}
	c := curveOf(hours, noon, 24)
	require.Len(t, c.Hours, 24)
	require.Equal(t, hour.Unix(), c.Hours[23])
	require.Equal(t, []int64{60, 10}, c.In[22:])
	require.Equal(t, int64(70), sum(c.In))
	require.Equal(t, int64(6), sum(c.Out))
	require.Equal(t, int64(2), sum(c.Again))
	rate := perHour(hours, noon, wire.HourCount.Deaths)
	require.InDelta(t, 10+60*(1-34.0/60-56.0/3600), rate, 0.01)
	s := sparklineOf(hours, noon, 3)
	require.Equal(t, int64(70), s.Total)
	require.Len(t, strings.Fields(s.Line), sparkPoints)
}

func TestWords(t *testing.T) {
	require.Equal(t, "1,234,567", number(1234567))
	require.Equal(t, "999", number(999))
	require.Equal(t, "-1,000", number(-1000))
	require.Equal(t, "1 entry", plural(1, "entry", "entries"))
	for d, text := range map[time.Duration]string{
		-time.Hour: "0 s", 59 * time.Second: "59 s", 90 * time.Second: "1 min", 65 * time.Minute: "1 h 5 min",
		30 * time.Hour: "30 h", 80 * time.Hour: "3 d",
	} {
		require.Equal(t, text, age(d))
	}
	require.Equal(t, 99, percentage(0.9999), "100 % is when all is done")
	require.Equal(t, "a b…", oneLine(4, "a\nb  cd"))
}
