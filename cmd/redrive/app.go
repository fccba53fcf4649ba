package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/client"
	"github.com/redrive-go/redrive/dlq/payload"
	"github.com/redrive-go/redrive/internal/config"
	"github.com/redrive-go/redrive/internal/suggest"
)

// app is one run of the program: its streams, the flags that all commands have, and the resources it has opened.
type app struct {
	in       io.Reader
	out, err io.Writer

	flags struct {
		config, store, actor, note string
		schema, archive, group     string
		server, profile, tokenFile string
		brokers                    []string
		output, jq                 string
		noColor, yes, quiet        bool
	}

	cfg     *config.Config    // once read
	letters *dlq.Letters      // once opened
	jq      payload.Evaluator // of a server; nil evaluates here
	metrics *metrics          // of a server; nil without

	makesStore bool           // create a missing store
	headed     bool           // the first page of a list is printed as CSV
	closers    []func() error // in the order in which things were opened
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "redrive",
		Short: "Operate dead letters: collect, look, group, fix, redrive",
		Long: `redrive operates dead letters: it collects them from the queues and topics of any service into a store, shows what died and
why, and sends messages back to where they came from.

It works on the store itself (--store, $REDRIVE_STORE), on what a configuration names (--config, $REDRIVE_CONFIG, else ./redrive.yaml
where there is one), or through a server's API (--server, --profile): dlq and runs do the same on all of them.`,
		Example: `  redrive demo
  redrive dlq groups --store dead-letters.db
  redrive dlq redrive --fingerprint 1f0c9f7a1b2c3d4e --rate 50 --config redrive.yaml`,
		Version: version(), SilenceErrors: true, SilenceUsage: true, Args: knownCommand,
		// a command that cannot print its result, or whose filter is a script's empty variable, changes nothing
		PersistentPreRunE: func(cmd *cobra.Command, args []string) error {
			return cmp.Or(a.checkOutput(cmd, args), checkValues(cmd), checkUse(cmd))
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.Flags().Bool("version", false, "print version, commit, its date and Go version")
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	f := root.PersistentFlags()
	f.StringVar(&a.flags.config, "config", "", "YAML file with store, brokers, sources and server ($REDRIVE_CONFIG)")
	f.StringVar(&a.flags.server, "server", "",
		"work through the API of a redrive server at this URL ($REDRIVE_SERVER; token from $REDRIVE_TOKEN)")
	f.StringVar(&a.flags.profile, "profile", "",
		"server and token by name, from redrive/profiles.yaml in the user's configuration ($REDRIVE_PROFILE)")
	f.StringVar(&a.flags.tokenFile, "token-file", "",
		"file with the token for the server ($REDRIVE_TOKEN has the token itself)")
	f.StringVar(&a.flags.store, "store", "", "store URL, or the path of a SQLite file ($REDRIVE_STORE, for passwords)")
	f.StringVar(&a.flags.schema, "schema", "", "PostgreSQL: schema of the store's tables ($REDRIVE_SCHEMA)")
	f.StringVar(&a.flags.archive, "archive", "", "PostgreSQL: schema of the store's archive ($REDRIVE_ARCHIVE)")
	f.StringArrayVar(&a.flags.brokers, "broker", nil,
		"broker to redrive through, as URL or name=URL; may be repeated ($REDRIVE_BROKER, for passwords)")
	f.StringVar(&a.flags.actor, "actor", "", "your name in the audit log ($REDRIVE_ACTOR; default user@host)")
	f.StringVar(&a.flags.note, "note", "", "why, for the audit log")
	f.StringVarP(&a.flags.output, "output", "o", "table", "table, wide, json, jsonl, csv or yaml")
	f.StringVar(&a.flags.jq, "jq", "", "jq expression to apply to the JSON; prints each result on a line")
	f.BoolVar(&a.flags.noColor, "no-color", false, "no colours ($NO_COLOR)")
	f.BoolVarP(&a.flags.yes, "yes", "y", false, "do not ask for confirmation")
	f.BoolVarP(&a.flags.quiet, "quiet", "q", false, "no progress and no hints on stderr")
	must(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)))

	store := "config store schema archive"
	audit := group("audit", "Look at who changed what, when and why", "", a.auditListCommand())
	root.AddCommand(uses(store+" broker server profile token-file", a.dlqCommand(), a.runsCommand(), audit,
		a.doctorCommand())...)
	root.AddCommand(uses(store+" broker", a.serveCommand(), a.configCommand())...)
	root.AddCommand(uses(store, a.tokenCommand(), a.migrateCommand())...)
	explain, topology := a.explainCommand(), a.topologyCommand()
	for _, cmd := range append(topology.Commands(), explain) {
		cmd.Flags().StringVar(&a.flags.group, "group", "",
			"group of the consumers, where \"default\" means none (default the broker's in the configuration)")
	}
	root.AddCommand(uses("config broker", explain, topology)...)
	root.AddCommand(a.demoCommand(), versionCommand(), exitCodesTopic(), a.evaluatorCommand())
	root.SetFlagErrorFunc(flagError)
	return root
}

// refuseUnknownHelp makes help of an unknown command an error.
func refuseUnknownHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, err := root.Find([]string{"help"})
	must(err)
	help.Args = func(_ *cobra.Command, args []string) error {
		found, unknown, err := root.Find(args)
		return cmp.Or(err, knownCommand(found, unknown))
	}
}

// uses declares which of the flags that all commands have, and that say what to work on, the commands and those below
// them use; see checkUse.
func uses(flags string, commands ...*cobra.Command) []*cobra.Command {
	for _, cmd := range commands {
		cmd.Annotations = map[string]string{"uses": flags}
	}
	return commands
}

// checkUse refuses a flag that would be ignored: a change would be made to another store than the one that is meant.
func checkUse(cmd *cobra.Command) (err error) {
	declared := cmd
	for declared.HasParent() && declared.Annotations == nil {
		declared = declared.Parent()
	}
	used := strings.Fields("actor note output jq no-color yes quiet " + declared.Annotations["uses"])
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Changed && !slices.Contains(used, f.Name) {
			err = usagef("--%s has no effect on %s: leave it out", f.Name, cmd.CommandPath())
		}
	})
	return err
}

// group is a command with subcommands, which shows its help.
func group(use, short, long string, below ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: knownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(below...)
	return cmd
}

// knownCommand is for commands with subcommands: an unknown word may be a typo.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			names = append(append(names, c.Name()), c.Aliases...)
		}
	}
	return usagef("unknown command %q for %q%s", args[0], cmd.CommandPath(), meant(args[0], names, cmd.CommandPath()+" "))
}

// checkValues refuses an empty text for a flag: discard --topic "$TOPIC" would select everything, and --store "$STORE"
// another store. A payload may be empty.
func checkValues(cmd *cobra.Command) (err error) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		empty := strings.HasPrefix(f.Value.Type(), "string") && (len(values) == 0 || slices.Contains(values, ""))
		if f.Changed && empty && (cmd.Name() != "edit" || f.Name != "payload") {
			err = usagef("--%s: a value is missing", f.Name)
		}
	})
	return err
}

// flagError adds the flag that was probably meant to the error of an unknown one.
func flagError(cmd *cobra.Command, err error) error {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		cause := errors.Unwrap(invalid)
		if number, ok := errors.AsType[*strconv.NumError](cause); ok {
			return usagef("--%s: %q is not a number: %v", invalid.GetFlag().Name, number.Num, number.Err)
		}
		return usagef("--%s: %v", invalid.GetFlag().Name, cause)
	}
	name, unknown := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !unknown {
		return usagef("%v", err)
	}
	return usagef("%v%s", err, meant(name, names, "--"))
}

func meant(word string, names []string, before string) string {
	if name := suggest.Nearest(word, names); name != "" {
		return "; did you mean " + before + name + "?"
	}
	return ""
}

// must is for faults of this program, not of its input.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (a *app) onClose(c func() error) { a.closers = append(a.closers, c) }

// close closes stores, brokers and the others in the reverse order of opening.
func (a *app) close() error {
	var errs []error
	for _, c := range slices.Backward(a.closers) {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

// by is the author of a change.
func (a *app) by() client.By {
	actor := cmp.Or(a.flags.actor, os.Getenv("REDRIVE_ACTOR"))
	if actor == "" {
		host, _ := os.Hostname()
		actor = "unknown"
		if u, err := user.Current(); err == nil {
			actor = u.Username
		}
		actor = strings.TrimSuffix(actor+"@"+host, "@")
	}
	return client.By{Actor: actor, Note: a.flags.note}
}

// interactive reports whether a person can be asked.
func (a *app) interactive() bool { return isTerminal(a.in) && isTerminal(a.err) }

// colourful reports whether output to w may have colours.
func (a *app) colourful(w io.Writer) bool {
	return isTerminal(w) && !a.flags.noColor && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

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

func exitCodesTopic() *cobra.Command {
	return &cobra.Command{
		Use: "exit-codes", Short: "What the exit codes mean",
		Long: `Exit codes:

    0  everything was done, or the run waits for a second person's approval
    1  error: the store, the server or the broker does not answer, or a file cannot be read or written
    2  usage: an unknown command or flag, an invalid value, or a configuration with a fault
    3  not found: there is no such entry, run, group, token or store
    4  partial: some of it was done and some was not, or the run was paused or cancelled or has stopped, as it
       does when its broker does not answer; stderr has the reason
    5  refused: someone else was faster, your role or the state does not allow it, or --yes is missing
  130  interrupted; stderr shows how to continue`,
	}
}
