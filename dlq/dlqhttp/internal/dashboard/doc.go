// Package dashboard is the web interface for dead letters: rendered by the server with html/template, refreshed by
// htmx, with curves by uPlot. Everything it needs is embedded, and it makes no requests to other hosts.
//
// # Hostile content
//
// Payloads, headers, error texts and names come from messages, which anyone may have produced. They are shown as text
// by contextual escaping, never as HTML; the Content-Security-Policy allows no scripts and styles except the embedded
// files; a payload is downloaded as an attachment that no browser renders.
//
// # What it costs the store
//
// A page that refreshes automatically reads through a cache whose entries live as long as the interval, and which loads
// only once for any number of requests: fifty viewers cost as much as one. A change made here empties the cache.
package dashboard
