package envelope_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
)

// line is one line of the log.
type line struct {
	method, message string
	err             error
	fields          watermill.LogFields
}

// lines is an adapter that keeps its lines.
type lines struct {
	written *[]line
	fields  watermill.LogFields
}

func (l lines) add(method, message string, err error, fields watermill.LogFields) {
	*l.written = append(*l.written, line{method, message, err, l.merged(fields)})
}

func (l lines) merged(fields watermill.LogFields) watermill.LogFields {
	all := maps.Clone(l.fields)
	maps.Copy(all, fields)
	return all
}

func (l lines) Error(m string, err error, f watermill.LogFields) { l.add("Error", m, err, f) }
func (l lines) Info(m string, f watermill.LogFields)             { l.add("Info", m, nil, f) }
func (l lines) Debug(m string, f watermill.LogFields)            { l.add("Debug", m, nil, f) }
func (l lines) Trace(m string, f watermill.LogFields)            { l.add("Trace", m, nil, f) }

func (l lines) With(f watermill.LogFields) watermill.LoggerAdapter {
	return lines{l.written, l.merged(f)}
}

func TestSlogLogger(t *testing.T) {
	failed := errors.New("connection lost")
	for name, v := range map[string]struct {
		log  func(*slog.Logger)
		want line
	}{
		"error": {
			func(l *slog.Logger) { l.Error("failed", "error", failed, "topic", "orders") },
			line{"Error", "failed", failed, watermill.LogFields{"topic": "orders"}},
		},
		"critical": {
			func(l *slog.Logger) { l.Log(t.Context(), envelope.LevelCritical, "failed", "error", failed) },
			line{"Error", "failed", failed, watermill.LogFields{"level": "CRITICAL"}},
		},
		"an error that is a text": {
			func(l *slog.Logger) { l.Error("failed", "error", "no route") },
			line{"Error", "failed", errors.New("no route"), watermill.LogFields{}},
		},
		"warning": {
			func(l *slog.Logger) { l.Warn("retry", "error", failed) },
			line{"Info", "retry", nil, watermill.LogFields{"level": "WARN", "error": failed}},
		},
		"info": {
			func(l *slog.Logger) { l.Info("done", "n", 3) },
			line{"Info", "done", nil, watermill.LogFields{"n": int64(3)}},
		},
		"debug": {
			func(l *slog.Logger) { l.Debug("done") },
			line{"Debug", "done", nil, watermill.LogFields{}},
		},
		"trace": {
			func(l *slog.Logger) { l.Log(t.Context(), watermill.LevelTrace, "done") },
			line{"Trace", "done", nil, watermill.LogFields{}},
		},
		"with attributes and groups": {
			func(l *slog.Logger) {
				l.With("service", "billing").WithGroup("").WithGroup("broker").With("url", "mem://").
					Info("open", slog.Group("of", "topic", "orders"), slog.Group("", "inline", true), slog.Attr{})
			},
			line{"Info", "open", nil, watermill.LogFields{
				"service": "billing", "broker.url": "mem://", "broker.of.topic": "orders", "broker.inline": true,
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var written []line
			log := envelope.SlogLogger(lines{written: &written, fields: watermill.LogFields{}})
			require.True(t, log.Enabled(context.Background(), watermill.LevelTrace))
			v.log(log)
			require.Equal(t, []line{v.want}, written)
		})
	}
	require.Same(t, slog.Default(), envelope.SlogLogger(nil))
}

// Watermill's own adapter appends the error, so that a line had two of them, and readers of JSON take the last: null.
func TestSlogLogger_OneError(t *testing.T) {
	var out bytes.Buffer
	adapter := watermill.NewSlogLogger(slog.New(slog.NewJSONHandler(&out, nil)))
	envelope.SlogLogger(adapter).Error("message dead-lettered", "error", "no route")
	var read map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &read))
	require.Equal(t, "no route", read["error"], out.String())
}
