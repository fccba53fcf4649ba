package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"

	"github.com/redrive-go/redrive/dlq/dlqhttp"
)

// A generated token is printed with its hash; one on stdin is hashed and not shown; a weak one is refused.
func TestConfigHash(t *testing.T) {
	hermetic(t)
	hash := func(input string, args ...string) (int, string, string) {
		var out, faults bytes.Buffer
		code := run(append([]string{"config"}, args...), strings.NewReader(input), &out, &faults)
		return code, out.String(), faults.String()
	}
	code, out, _ := hash("", "hash-token")
	require.Equal(t, exitOK, code)
	made := regexp.MustCompile(`^token: (rdr_\w{26})\nhash:  (sha256:[0-9a-f]{64})\n$`).FindStringSubmatch(out)
	require.Len(t, made, 3, out)
	require.Equal(t, dlqhttp.HashToken(made[1]), made[2])

	code, out, _ = hash(made[1]+"\n", "hash-token")
	require.Equal(t, exitOK, code)
	require.Equal(t, made[2]+"\n", out)
	code, _, faults := hash("secret", "hash-token")
	require.Equal(t, exitUsage, code)
	require.Contains(t, faults, "can be guessed")

	code, out, _ = hash("correct horse battery\n", "hash-password")
	require.Equal(t, exitOK, code)
	require.NoError(t, bcrypt.CompareHashAndPassword([]byte(strings.TrimSpace(out)), []byte("correct horse battery")))
	code, _, faults = hash("short", "hash-password")
	require.Equal(t, exitUsage, code)
	require.NotContains(t, faults, "short")
}
