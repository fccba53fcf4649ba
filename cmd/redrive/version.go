package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print version, commit, its date and Go version", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "redrive "+version())
			return err
		},
	}
}

// Set by the linker in the binaries of a release.
var released, commit, date string

// version is version, commit and its date: of a release, or what the go command recorded in the binary.
func version() string {
	number, revision, when, compiler := released, commit, date, runtime.Version()
	if info, ok := debug.ReadBuildInfo(); ok {
		number = cmp.Or(number, info.Main.Version)
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				revision = cmp.Or(revision, s.Value)
			case "vcs.time":
				when = cmp.Or(when, s.Value)
			}
		}
	}
	revision = revision[:min(len(revision), 12)]
	return strings.Join(strings.Fields(cmp.Or(number, "(devel)")+" "+revision+" "+when+" "+compiler), " ")
}

// exitCodesTopic is a help topic.
func exitCodesTopic() *cobra.Command {
	return &cobra.Command{
		Use: "exit-codes", Short: "What the exit codes mean",
		Long: `Exit codes:

    0  everything was done
    1  an error: a store or broker that does not answer, a file that cannot be written
    2  usage: unknown command or flag, an invalid value, a configuration that cannot be read
    3  not found: no such entry, run or group
    4  partial: some of it was done, some was not; stderr names it
    5  refused: someone else was faster, your role or the state does not allow it, or --yes is missing
  130  interrupted; stderr shows how to continue`,
	}
}
