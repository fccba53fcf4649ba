// Package dlqhttp serves dead letters over HTTP: a dashboard, a REST API with its OpenAPI 3.1 document, the health of
// the program, and what else is mounted alongside it, all as one [http.Handler] below one prefix.
//
//	handler, err := dlqhttp.New(dlqhttp.Config{Manager: letters.Manager(broker), Runner: runner})
//	http.ListenAndServe("127.0.0.1:8321", handler)
//
// # Who may do what
//
// Without [Config.Auth] the handler only answers this machine: requests that arrive on another address, through a
// proxy, or for a host name that is not this machine's (DNS rebinding) get 403. With authenticators it answers the
// callers that they know. Every route requires a role, x-role in the OpenAPI document: metrics reads /metrics, a viewer
// looks, an operator redrives, edits and closes, an approver approves other people's runs, an admin imports and purges.
// GET never changes state, and a browser's request from another site is refused.
//
// The jq expressions of operators are evaluated by dlq.ManagerConfig.JQ. Its default runs in this process, whose memory
// an expression can exhaust: unless operators may do that, give the manager, and that of the runner, a payload.Child.
//
// # Answers
//
// Errors are application/problem+json (RFC 9457) with a sentence that names the remedy: 400 and 422 for invalid
// requests, 401 and 403, 404, 405, 406, 409 for the second of two changes (it names who won, and when), 412 for a
// version that is not the latest, 413, 415, 429, and 503 or 504 when the store or the broker does not answer. A refused
// request has changed nothing.
package dlqhttp
