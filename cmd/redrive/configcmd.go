package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
	"golang.org/x/crypto/bcrypt"
	"golang.org/x/term"

	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/internal/config"
)

func (a *app) configCommand() *cobra.Command {
	cmd := group("config", "Check, show and describe the configuration file", "",
		&cobra.Command{
			Use: "validate [FILE]", Short: "Check a configuration, without connecting to anything", Args: cobra.MaximumNArgs(1),
			RunE: a.configured(func(ctx context.Context, cfg *config.Config) error {
				if a.configPath() == "" {
					return usagef("which file? Give FILE, or --config, or set REDRIVE_CONFIG")
				}
				if err := a.checkServer(ctx); err != nil {
					return err
				}
				a.hint("valid: %s, %s", plural(len(cfg.Brokers), "broker"), plural(len(cfg.Collector.Sources), "source"))
				return nil
			}),
		},
		&cobra.Command{
			Use: "show [FILE]", Short: "Show the configuration as it is understood, without passwords",
			Args: cobra.MaximumNArgs(1),
			RunE: a.configured(func(_ context.Context, cfg *config.Config) error {
				text, data, err := shownConfig(cfg)
				if err != nil {
					return err
				}
				return a.printOne(data, func() string { return string(text) })
			}),
		},
		uses("", &cobra.Command{
			Use: "schema", Short: "Print the JSON Schema of the configuration file", Args: cobra.NoArgs,
			Example: `  redrive config schema > redrive.schema.json
  # yaml-language-server: $schema=redrive.schema.json`,
			RunE: func(*cobra.Command, []string) error {
				_, err := fmt.Fprint(a.out, string(config.Schema()))
				return err
			},
		})[0],
	)
	cmd.AddCommand(uses("", a.hashCommands()...)...)
	return cmd
}

// configured is a command that begins with the configuration, of the file that its argument names if it has one.
func (a *app) configured(do func(context.Context, *config.Config) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 && a.flags.config != "" {
			return usagef("give one file or the other: %s is the argument, %s --config", args[0], a.flags.config)
		}
		if len(args) > 0 {
			a.flags.config = args[0]
		}
		cfg, err := a.configuration()
		if err != nil {
			return err
		}
		return do(cmd.Context(), cfg)
	}
}

// shownConfig is a configuration without its secrets, as YAML and as JSON.
func shownConfig(cfg *config.Config) ([]byte, json.RawMessage, error) {
	text, err := yaml.MarshalWithOptions(cfg.Redacted(), yaml.OmitEmpty(), yaml.OmitZero())
	if err != nil {
		return nil, nil, err
	}
	data, err := yaml.YAMLToJSON(text)
	return text, data, err
}

// hashCommands make the hashes of tokens and passwords for the configuration.
func (a *app) hashCommands() []*cobra.Command {
	return []*cobra.Command{
		{
			Use: "hash-token", Short: "Make a token for server.auth.tokens, or hash the one on stdin", Args: cobra.NoArgs,
			Long: `Make a random token and print it with the hash that goes into server.auth.tokens. The token is shown once and stored nowhere: give
it to its owner. With a token on stdin (at least 20 characters, random), print its hash alone.`,
			Example: `  redrive config hash-token
  redrive config hash-token < token.txt`,
			RunE: func(cmd *cobra.Command, _ []string) error { return a.hashToken(cmd.Context()) },
		},
		{
			Use: "hash-password", Short: "Hash the password on stdin for server.auth.users", Args: cobra.NoArgs,
			Example: `  redrive config hash-password < password.txt`,
			RunE:    func(cmd *cobra.Command, _ []string) error { return a.hashPassword(cmd.Context()) },
		},
	}
}

const (
	minToken    = 20
	minPassword = 12
)

func (a *app) hashToken(ctx context.Context) error {
	token, err := a.secret(ctx, "")
	if err != nil {
		return err
	}
	if token != "" {
		if len(token) < minToken {
			return usagef("a token of %d characters can be guessed: give at least %d, or nothing on stdin to generate one",
				len(token), minToken)
		}
		_, err = fmt.Fprintln(a.out, dlqhttp.HashToken(token))
		return err
	}
	token = "rdr_" + rand.Text()
	_, err = fmt.Fprintf(a.out, "token: %s\nhash:  %s\n", token, dlqhttp.HashToken(token))
	return err
}

func (a *app) hashPassword(ctx context.Context) error {
	password, err := a.secret(ctx, "password: ")
	if err != nil {
		return err
	}
	if len(password) < minPassword || len(password) > 72 {
		return usagef("a password has %d to 72 bytes: the one on stdin has %d", minPassword, len(password))
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.DefaultCost)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.out, string(hash))
	return err
}

// secret reads a secret from stdin: from the user without showing it, if there is a question to ask.
func (a *app) secret(ctx context.Context, question string) (string, error) {
	if f, ok := a.in.(*os.File); ok && isTerminal(f) {
		if question == "" {
			return "", nil
		}
		_, _ = fmt.Fprint(a.err, question)
		fd := int(f.Fd())
		shows, err := term.GetState(fd)
		if err != nil {
			return "", err
		}
		text, err := answer(ctx, func() (string, error) {
			text, err := term.ReadPassword(fd)
			return string(text), err
		})
		_, _ = fmt.Fprintln(a.err)
		return text, cmp.Or(err, term.Restore(fd, shows)) // an interrupted ReadPassword does not restore it
	}
	return answer(ctx, func() (string, error) {
		text, err := io.ReadAll(io.LimitReader(a.in, 4096))
		return strings.TrimSpace(string(text)), err
	})
}
