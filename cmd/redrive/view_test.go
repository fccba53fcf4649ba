package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
)

// A dead letter shows the trace that it belongs to.
func TestView_Trace(t *testing.T) {
	var v shown
	v.Body.Headers = map[string]string{
		envelope.KeyTraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
	require.Contains(t, v.text(), "\ntrace         0af7651916cd43dd8448eb211c80319c\n")
}
