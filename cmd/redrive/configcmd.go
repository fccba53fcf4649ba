package main

import (
	"encoding/json"
	"fmt"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/config"
)

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "config", Short: "Check, show and describe the configuration file", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		&cobra.Command{
			Use: "validate [FILE]", Short: "Check a configuration without opening anything", Args: cobra.MaximumNArgs(1),
			RunE: func(_ *cobra.Command, args []string) error {
				if len(args) > 0 {
					a.flags.config = args[0]
				}
				cfg, err := a.configuration()
				if err != nil {
					return err
				}
				a.hint("valid: %s, %s", plural(len(cfg.Brokers), "broker"), plural(len(cfg.Collector.Sources), "source"))
				return nil
			},
		},
		&cobra.Command{
			Use: "show [FILE]", Short: "Show the configuration as it is understood, without passwords", Args: cobra.MaximumNArgs(1),
			RunE: func(_ *cobra.Command, args []string) error {
				if len(args) > 0 {
					a.flags.config = args[0]
				}
				cfg, err := a.configuration()
				if err != nil {
					return err
				}
				text, err := yaml.MarshalWithOptions(cfg.Redacted(), yaml.OmitEmpty(), yaml.OmitZero())
				if err != nil {
					return err
				}
				if a.flags.output == "table" && a.flags.jq == "" {
					_, err = a.out.Write(text)
					return err
				}
				data, err := yaml.YAMLToJSON(text)
				if err != nil {
					return err
				}
				return a.printOne(json.RawMessage(data), nil)
			},
		},
		&cobra.Command{
			Use: "schema", Short: "Print the JSON Schema of the configuration file", Args: cobra.NoArgs,
			Example: `  redrive config schema > redrive.schema.json
  # yaml-language-server: $schema=redrive.schema.json`,
			RunE: func(*cobra.Command, []string) error {
				_, err := fmt.Fprint(a.out, string(config.Schema()))
				return err
			},
		},
	)
	return cmd
}
