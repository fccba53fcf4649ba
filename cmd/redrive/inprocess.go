package main

import (
	"context"
	"io"
	"net/http"
	"sync"
)

// inProcess is an http.RoundTripper that calls a handler of this process. Responses are streamed. The
// handler of a cancelled request returns before its caller does, so that none outlives the command.
type inProcess struct{ handler http.Handler }

// RoundTrip calls the handler.
func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	served := r.Clone(ctx)
	if served.Body == nil {
		served.Body = http.NoBody
	}
	reader, writer := io.Pipe()
	w := &pipedResponse{header: http.Header{}, body: writer, begun: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if recover() != nil { // http.ErrAbortHandler: the response is not complete; the handler recovers the rest
				w.WriteHeader(http.StatusInternalServerError)
				_ = writer.CloseWithError(io.ErrUnexpectedEOF) // never fails
				return
			}
			w.WriteHeader(http.StatusOK)
			_ = writer.Close() // never fails
		}()
		t.handler.ServeHTTP(w, served)
	}()
	<-w.begun
	body := &pipedBody{reader, cancel, ended}
	if err := r.Context().Err(); err != nil && w.status >= http.StatusBadRequest {
		_ = body.Close() // never fails
		return nil, err
	}
	return &http.Response{
		StatusCode: w.status, Status: http.StatusText(w.status), Header: w.sent, Body: body, ContentLength: -1, Request: r,
		ProtoMajor: 1, ProtoMinor: 1,
	}, nil
}

// pipedResponse writes a response to a pipe.
type pipedResponse struct {
	header, sent http.Header
	body         *io.PipeWriter
	status       int
	once         sync.Once
	begun        chan struct{} // closed when status and sent are set
}

// Header is the response's header until it is sent.
func (w *pipedResponse) Header() http.Header { return w.header }

// WriteHeader begins the response.
func (w *pipedResponse) WriteHeader(status int) {
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.begun)
	})
}

// Write writes a part of the body.
func (w *pipedResponse) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// pipedBody ends the handler when the body is not read any further.
type pipedBody struct {
	*io.PipeReader

	cancel context.CancelFunc
	ended  <-chan struct{} // closed when the handler has returned
}

// Close ends the handler and waits for it.
func (b *pipedBody) Close() error {
	b.cancel()
	err := b.PipeReader.Close()
	<-b.ended
	return err
}
