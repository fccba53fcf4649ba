package main

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print version, commit and Go version", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "redrive "+version())
			return err
		},
	}
}

// version is what the Go command wrote into the binary.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown)"
	}
	text := info.Main.Version
	if text == "" {
		text = "(devel)"
	}
	commit := ""
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			commit = " " + s.Value[:12]
		}
	}
	return text + commit + " " + info.GoVersion
}

// exitCodesTopic is help without a command.
func exitCodesTopic() *cobra.Command {
	return &cobra.Command{
		Use: "exit-codes", Short: "What the exit codes mean",
		Long: `Exit codes:

    0  everything was done
    1  an error: a store or broker that does not answer, a file that cannot be written
    2  usage: unknown command or flag, a value that makes no sense, a configuration that cannot be read
    3  not found: no such entry, run or group
    4  partial: some of it was done, some was not; stderr says which
    5  refused: somebody else was faster, the state does not allow it, or --yes is missing
  130  interrupted; stderr says how to go on`,
	}
}
