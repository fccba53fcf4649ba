package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) exportCommand() *cobra.Command {
	var (
		filter filterFlags
		file   string
	)
	cmd := &cobra.Command{
		Use: "export", Short: "Write dead letters as JSON lines, byte for byte, for dlq import", Args: cobra.NoArgs,
		Example: `  redrive dlq export --status any > dead-letters.jsonl
  redrive dlq export --topic orders --file orders.jsonl`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := filter.read(time.Now())
			if err != nil {
				return err
			}
			manager, err := a.manager(cmd.Context())
			if err != nil {
				return err
			}
			out, finish := a.out, func() error { return nil }
			if file != "" {
				created, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
				if err != nil {
					return err
				}
				out, finish = created, func() error {
					if err := created.Sync(); err != nil {
						return err
					}
					return created.Close()
				}
			}
			total, err := manager.Count(cmd.Context(), f, 0)
			if err != nil {
				return err
			}
			b := a.startBar("exporting", total)
			n, err := manager.Export(cmd.Context(), b.countLines(out), f)
			b.end()
			if closed := finish(); err == nil {
				err = closed
			}
			if cmd.Context().Err() != nil {
				a.hint("interrupted: %s exported; begin anew", deadLetters(n))
				return cmd.Context().Err()
			}
			if err != nil {
				return err
			}
			a.hint("%s exported", deadLetters(n))
			return nil
		},
	}
	filter.add(a, cmd)
	cmd.Flags().StringVar(&file, "file", "", "file to write, which must not be there yet (default stdout)")
	return cmd
}

func (a *app) importCommand() *cobra.Command {
	return &cobra.Command{
		Use: "import [FILE]", Short: "Store what dlq export has written; what is there already stays", Args: cobra.MaximumNArgs(1),
		Example: `  redrive dlq import orders.jsonl --store postgres://...`,
		RunE: func(cmd *cobra.Command, args []string) error {
			in := a.in
			if len(args) > 0 && args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer func() { _ = f.Close() }() // only read
				in = f
			}
			var size int64
			if info, ok := in.(*os.File); ok {
				if stat, err := info.Stat(); err == nil && stat.Mode().IsRegular() {
					size = stat.Size()
				}
			}
			manager, err := a.manager(cmd.Context())
			if err != nil {
				return err
			}
			b := a.startBar("importing", size)
			imported, err := manager.Import(cmd.Context(), b.countRead(in), a.by())
			b.end()
			a.hint("%d stored, %d were there", imported.Stored, imported.Seen)
			if cmd.Context().Err() != nil {
				a.hint("interrupted: the same command goes on with the rest")
				return cmd.Context().Err()
			}
			if err != nil && imported.Stored > 0 {
				return &codedError{exitPartial, err.Error()}
			}
			return err
		},
	}
}

func (a *app) migrateCommand() *cobra.Command {
	return &cobra.Command{
		Use: "migrate", Short: "Make the store's tables, or bring them up to date", Args: cobra.NoArgs,
		Long: `Make the store's tables, or bring them up to date. Every command does so when it opens the store; this one does nothing else, for
a step of a deployment that has the rights to change tables when the others have not.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			letters, err := a.open(cmd.Context())
			if err != nil {
				return err
			}
			if err := letters.Store().Ping(cmd.Context()); err != nil {
				return fmt.Errorf("the tables are up to date, but the store takes nothing: %w", err)
			}
			a.hint("the store is up to date")
			return nil
		},
	}
}
