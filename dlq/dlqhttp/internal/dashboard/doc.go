// Package dashboard is the web page over dead letters: rendered by the server with html/template, refreshed by htmx,
// with curves by uPlot. Everything it needs is embedded and it asks no other host for anything.
//
// # Hostile content
//
// Payloads, headers, error texts and names come from messages, and messages from anybody. They are shown as text by
// contextual escaping, never as HTML; the Content-Security-Policy allows no script and no style but the embedded files;
// a payload is downloaded as an attachment that no browser renders.
//
// # What it costs the store
//
// A page that refreshes automatically reads through a cache whose entries live as long as the interval, and that asks
// once however many ask at the same time: fifty viewers cost what one does. A change that is made here empties the
// cache.
package dashboard
