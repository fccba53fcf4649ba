package secrets_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/internal/secrets"
)

func TestHide(t *testing.T) {
	const password = "p@ss w/rd+"
	err := fmt.Errorf("dial p%%40ss%%20w%%2Frd+@host, p%%40ss+w%%2Frd%%2B, %s: %w", password, io.EOF)
	hidden := secrets.Hide(err, "", password)
	require.Equal(t, "dial xxxxx@host, xxxxx, xxxxx: EOF", hidden.Error())
	require.ErrorIs(t, hidden, io.EOF)

	other := errors.New("no such host")
	require.Same(t, other, secrets.Hide(other, "", "ho", password))
}
