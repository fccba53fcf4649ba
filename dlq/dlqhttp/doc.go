// Package dlqhttp serves dead letters over HTTP: a dashboard, a REST API with its OpenAPI 3.1 document, the health of
// the program, and what else is mounted alongside it, all as one [http.Handler] below one prefix.
//
//	handler, err := dlqhttp.New(dlqhttp.Config{Manager: letters.Manager(broker), Runner: runner})
//	http.ListenAndServe("127.0.0.1:8321", handler)
//
// # Who may do what
//
// Without [Config.Auth] the handler answers only to this machine: requests that came in on another address, through a
// proxy, or for a host name that is not this machine's (DNS rebinding) get 403. With authenticators it answers to the
// callers that they know. Every route asks for a role, which stands in the OpenAPI document as x-role: a viewer looks,
// an operator redrives, edits and closes, an approver lets runs of others begin, an admin imports and purges. State is
// never changed by GET, and a browser's request from another site is refused.
//
// # Answers
//
// Errors are application/problem+json (RFC 9457) with a sentence that names the remedy: 400 and 422 for what makes no
// sense, 401 and 403, 404, 405, 406, 409 for the second of two (it names who won, and when), 412 for a version that is
// not the latest, 413, 415, 429, and 503 when the store does not answer. What was refused has changed nothing.
package dlqhttp
