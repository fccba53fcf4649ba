package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/dlq/payload"
)

// evaluatorName is the command that a server runs for jq expressions, so that their time and memory are not the
// server's.
const evaluatorName = "evaluate-jq"

func newEvaluator() (*payload.Child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	return payload.NewChild(program, evaluatorName)
}

func (a *app) evaluatorCommand() *cobra.Command {
	return &cobra.Command{
		Use: evaluatorName, Short: "Evaluate jq expressions for a server", Args: cobra.NoArgs, Hidden: true,
		RunE: func(*cobra.Command, []string) error { return payload.Serve(a.in, a.out) },
	}
}
