package drivers

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheck(t *testing.T) {
	require.NoError(t, Check("mem://", "sqlite:dead.db", "gopher://localhost"))
	if len(built) > 0 {
		return // with tags nothing is missing
	}
	require.EqualError(t, Check("kafka://localhost", "postgres://user:secret@localhost/db"),
		"no client for kafka and postgres is compiled into this program: go run -tags kafka,postgres ./examples/...")
	require.EqualError(t, Check("watermill+postgres://localhost/db", "sqlite:dead.db"),
		"no client for watermill+postgres is compiled into this program: go run -tags postgres,watermill ./examples/...")
	require.EqualError(t, Check("watermill+kafka://localhost"),
		"no client for watermill+kafka is compiled into this program: go run -tags watermill ./examples/...")
}
