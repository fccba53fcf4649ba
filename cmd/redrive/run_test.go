package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// No error of a package in the command is printed with that package's name. The names are read from the sources, so a
// new package cannot be forgotten.
func TestErrorText_WithoutPackages(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f",
		`{{if .Module}}{{if .Module.Main}}{{.Name}} {{.Dir}} {{join .GoFiles " "}}{{end}}{{end}}`, ".")
	out, err := cmd.Output()
	require.NoError(t, err)
	seen := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		prefix := regexp.MustCompile(`"((?:[a-z]+/)?` + words[0] + `): `)
		for _, name := range words[2:] {
			source, err := os.ReadFile(filepath.Join(words[1], name))
			require.NoError(t, err)
			for _, match := range prefix.FindAllSubmatch(source, -1) {
				seen[string(match[1])] = true
			}
		}
	}
	require.Greater(t, len(seen), 15, "the errors are written in another way")
	for name := range seen {
		cause := fmt.Errorf("%s: open orders: %w", name, errors.New(name+": not there"))
		require.Equal(t, "open orders: not there", errorText(cause), "add it to packages")
	}
}

// Text that is not a package's name stays, and every line of joined errors is treated the same.
func TestErrorText(t *testing.T) {
	for text, want := range map[string]string{
		"redrive: kafka: rabbitmq: x":          "x",
		"dlq: a\nbroker kafka: kafka: b":       "a\nbroker kafka: b",
		"broker r: rabbitmq: open amqp://h: y": "broker r: open amqp://h: y",
		`config: redrive.rate: -1`:             "redrive.rate: -1",
		"jq expression: unexpected EOF":        "jq expression: unexpected EOF",
	} {
		require.Equal(t, want, errorText(errors.New(text)))
	}
	require.Empty(t, errorText(fmt.Errorf("kafka: %w", context.Canceled)), "the user wanted it")
}
