package dashboard_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
)

// attacks are texts that would have an effect on a page that treats them as markup, for all places where pages show
// text.
var attacks = []string{
	`<script>window.pwned=1</script><img src=x onerror="window.pwned=1">`,
	`"><svg onload="window.pwned=1"><b data-xss="1">`,
	`' autofocus onfocus='window.pwned=1' x='`,
	`</textarea></pre></title></code><iframe src="javascript:parent.pwned=1"></iframe>`,
	`javascript:window.pwned=1//`,
	`{{.Data}}${window.pwned=1}<!--<script>--!><style>body{display:none}</style>`,
	"\u202e<a href=\"//evil.test\" data-xss>\u0000\x1b[31m\u2028</a><base href=//evil.test>",
	`<input data-do="theme" form="pick" name="scope" value="all"><form action="//evil.test"><button data-xss>`,
}

// The text of messages, errors and notes is shown as text: it runs no script, does not change the page, and contacts no
// other host. Every field of an entry has every attack once.
func TestHostile(t *testing.T) {
	s := newSite(t, func(c *dlqhttp.Config) {
		c.Topology = func(context.Context) (any, error) {
			return map[string]any{attacks[0]: attacks[1], "list": []any{map[string]any{attacks[2]: attacks[3]}}}, nil
		}
		c.Settings = map[string]any{attacks[3]: attacks[0]}
		c.Rules = []redrive.Rule{{Name: attacks[0], CauseText: attacks[1]}}
	})
	b := s.open(t, "<b data-xss>ana</b>:admin")
	b.expect("404")
	b.expect("422") // one of the attacks has a NUL, which is refused
	for i := range attacks {
		at := func(n int) string { return attacks[(i+n)%len(attacks)] }
		id := s.put(t, 1, func(d *envelope.DeadLetter) {
			payload := fmt.Appendf(nil, `{%q:%q,"list":[%q,{"x":%q}]}`, at(0), at(1), at(2), at(3))
			if i%2 == 1 {
				payload = []byte(at(0)) // not JSON
			}
			d.Message = message.NewMessage(at(1), payload)
			d.Message.Metadata = message.Metadata{
				envelope.KeyMessageID: fmt.Sprint(i, at(2)), envelope.KeyCorrelationID: at(3), envelope.KeyContentType: at(4),
				at(5): at(6), "tenant": at(7),
				envelope.KeyEvent: at(1), "source_table": at(2), "source_id": at(3),
				envelope.KeyTraceParent: "00-" + at(0) + "-1-01",
			}
			d.Err = envelope.Error{Message: at(0), Code: at(1), Trace: at(2)}
			d.Class, d.Rule, d.Handler, d.Reason = at(3), at(4), at(5), envelope.ReasonPermanent
			d.Origin = envelope.Origin{
				Broker: at(6), Topic: at(7), Consumer: at(1), Exchange: at(2), RoutingKey: at(3), Key: []byte(at(4)),
				Position: at(5),
			}
		})[0]
		_, _, err := s.manager.Edit(t.Context(), id,
			dlq.Edit{Payload: fmt.Appendf(nil, "%s\n%s", at(3), at(4)), SetHeaders: map[string]string{"tenant": at(2)}},
			dlq.By{Actor: at(0), Note: at(1)})
		require.NoError(t, err)
		filter := dlq.Filter{IDs: []int64{id}}
		if !strings.Contains(at(7), "\x00") { // which a run refuses
			filter.Topic = at(7)
		}
		run, err := s.runner.StartRun(t.Context(), redrive.Spec{Filter: filter, JQ: `"` + "x" + `"`, Paused: true},
			dlq.By{Actor: at(3), Note: at(0)})
		require.NoError(t, err)
		e := s.entry(t, id)
		q := url.QueryEscape
		for _, path := range []string{
			fmt.Sprintf("/entries/%d", id), fmt.Sprintf("/entries/%d/edit", id), fmt.Sprintf("/entries/%d?revision=0", id),
			"/groups/" + url.PathEscape(e.Fingerprint),
			"/runs/" + run.ID, "/runs?state=", "/entries?status=any&q=" + q(at(0)) + "&payload=" + q(at(1)) + "&topic=" +
				q(at(7)) + "&handler=" + q(at(5)),
			"/groups?status=any&q=" + q(at(0)) + "&handler=" + q(at(1)) + "&class=" + q(at(2)),
			"/audit?actor=" + q(at(0)) + "&run=" + q(at(1)),
			"/runs/new?topic=" + q(at(7)) + "&jq=" + q(at(0)) + "&canary=" + q(at(1)) + "&rate=" + q(at(2)),
			"/entries/act?do=discard&scope=all&topic=" + q(at(7)), "/nowhere/" + url.PathEscape(at(0)),
		} {
			b.visit(path)
			b.harmless(path)
		}
	}
	for _, path := range []string{
		"/", "/groups", "/report", "/entries?status=any", "/runs", "/audit", "/system",
		"/retention",
	} {
		b.visit(path)
		b.harmless(path)
	}
	// The texts are readable.
	b.visit("/entries/1")
	require.Contains(t, b.text(), attacks[0])
	for _, path := range []string{
		"/entries?status=" + url.QueryEscape(attacks[0]),
		"/entries?since=" + url.QueryEscape(attacks[1]), "/runs?state=" + url.QueryEscape(attacks[1]),
	} {
		b.visit(path)
		b.harmless(path)
	}
}

// harmless looks for effects of an attack on the page. The console, dialogs and requests are monitored all the time.
func (b *tab) harmless(path string) {
	b.t.Helper()
	found := eval[[]string](b, `[
		window.pwned ? "a script ran" : "", ...[...document.querySelectorAll("[data-xss], iframe, base, style, script:not([src]), [onerror], [onload], [onfocus], [style]:not(.chart *)")].map((e) => e.outerHTML.slice(0, 200)),
		...[...document.querySelectorAll("[href], [src], [action]")].filter((e) => !new URL(e.getAttribute("href") ?? e.getAttribute("src") ?? e.getAttribute("action"), location).href.startsWith(location.origin + "/ops")).map((e) => e.outerHTML.slice(0, 200)),
		getComputedStyle(document.body).display === "none" ? "hidden" : "",
	].filter(Boolean)`)
	require.Empty(b.t, found, path)
}
