package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/dlq/wire"
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
		RunE: a.managed(func(ctx context.Context, m *api, _ []string) error {
			total, err := m.count(ctx, filter.selected)
			if err != nil {
				return err
			}
			out, created := a.out, (*os.File)(nil)
			if file != "" {
				if created, err = os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
					return err
				}
				out = created
			}
			b := a.startBar("exporting", total)
			n, err := export(ctx, m, countLines(out, b.add), filter.selected)
			b.end()
			if created != nil {
				if err = cmp.Or(err, created.Sync(), created.Close(), ctx.Err()); err != nil {
					_ = os.Remove(file) // a part would be in the way of the next try
				}
			}
			return a.ended(ctx, err, deadLetters(n)+" exported", "start again")
		}),
	}
	filter.add(a, cmd)
	cmd.Flags().StringVar(&file, "file", "", "file to write, which must not exist (default stdout)")
	return cmd
}

// export copies an export. A lost connection is an error.
func export(ctx context.Context, m *api, w io.Writer, f wire.Filter) (lines int64, err error) {
	from, err := m.ExportEntries(ctx, f)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(countLines(w, func(n int64) { lines += n }), from)
	if err != nil {
		err = fmt.Errorf("the export broke off: %w", err)
	}
	return lines, errors.Join(err, from.Close())
}

func (a *app) importCommand() *cobra.Command {
	return &cobra.Command{
		Use: "import [FILE]", Short: "Import the output of dlq export; existing and archived entries stay unchanged",
		Args:    cobra.MaximumNArgs(1),
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
			a.makesStore = true
			manager, err := a.manager(cmd.Context())
			if err != nil {
				return err
			}
			b := a.startBar("importing", size)
			imported, err := manager.ImportEntries(cmd.Context(), io.TeeReader(in, b), a.by())
			b.end()
			if imported != nil {
				a.hint("%d stored, %d already there", imported.Stored, imported.Seen)
			}
			if cmd.Context().Err() != nil {
				a.hint("interrupted: the same command continues with the rest")
				return cmd.Context().Err()
			}
			if err != nil && imported != nil && imported.Stored > 0 {
				return &codedError{exitPartial, unprefixed(err)}
			}
			return err
		},
	}
}

func (a *app) migrateCommand() *cobra.Command {
	var table string
	cmd := &cobra.Command{
		Use: "migrate", Short: "Create the store's tables, or bring them up to date", Args: cobra.NoArgs,
		Long: `Create the store's tables, or bring them up to date. Services, "redrive serve" and an import do the same when they open the store;
this command does nothing else, for a deployment in which only one step may change tables. Commands that read or change entries never
change tables: a missing store, or one of another version, is an error.

With --from-table it also takes over the rows of a dead letter table in the same PostgreSQL database that services wrote before (id,
event_id, event_type, event_payload, error_message, status, created_at, ...). With --schema the store is in a separate schema, and the table
stays as it is. In the same schema the table, its archive and those indexes whose names the store needs are renamed; nothing in them is
changed or removed. Stop what inserts into the table while the command runs. Rows that are inserted later are taken over by the same
command.`,
		Example: `  redrive migrate --store postgres://redrive@db/app
  redrive migrate --store postgres://redrive@db/app --from-table dlq_events`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if table != "" {
				return a.takeOver(cmd.Context(), table)
			}
			letters, err := a.open(cmd.Context())
			if err != nil {
				return err
			}
			if err := letters.Store().Ping(cmd.Context()); err != nil {
				return fmt.Errorf("the tables are up to date, but the store accepts nothing: %w", err)
			}
			a.hint("the store is up to date")
			return nil
		},
	}
	cmd.Flags().StringVar(&table, "from-table", "", "take over the rows of this table, such as dlq_events")
	return cmd
}

// takeOver makes a store in a database with an existing dead letter table.
func (a *app) takeOver(ctx context.Context, table string) error {
	cfg, err := a.configuration()
	if err != nil {
		return err
	}
	address, err := a.storeAddress(cfg)
	if err != nil {
		return err
	}
	by := a.by()
	done, err := sqlstore.TakeOver(ctx, address, table, dlq.By{Actor: by.Actor, Note: by.Note})
	if err != nil {
		return err
	}
	for _, status := range slices.Sorted(maps.Keys(done.Before)) {
		_, _ = fmt.Fprintf(a.out, "%-10s %d before, %d after\n", status, done.Before[status], done.After[status])
	}
	a.hint("%d taken over, %d existed already; the original rows are in table %s", done.Stored, done.Seen,
		done.Kept)
	return nil
}
