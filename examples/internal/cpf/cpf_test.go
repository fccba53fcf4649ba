package cpf_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/examples/internal/cpf"
)

func TestValid(t *testing.T) {
	for s, want := range map[string]bool{
		"529.982.247-25":  true,
		"52998224725":     true,
		"111.444.777-35":  true,
		"529.982.247-26":  false,
		"111.111.111-11":  false,
		"":                false,
		"5299822472":      false,
		"529.982.247-2x":  false,
		"529.982.247-255": false,
	} {
		require.Equal(t, want, cpf.Valid(s), s)
	}
}
