package envelope_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
)

func TestTraceID(t *testing.T) {
	for header, want := range map[string]string{
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01":       "0af7651916cd43dd8448eb211c80319c",
		"01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-later": "0af7651916cd43dd8448eb211c80319c",
		"00-00000000000000000000000000000000-b7ad6b7169203331-01":       "",
		"00-0af7651916cd43dd8448eb211c8031zz-b7ad6b7169203331-01":       "",
		"nonsense": "",
		"":         "",
	} {
		require.Equal(t, want, envelope.TraceID(map[string]string{envelope.KeyTraceParent: header}), header)
	}
}
