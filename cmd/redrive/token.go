package main

import (
	"crypto/rand"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/driver"
)

// tokenCommand manages the tokens that a store keeps. Who may write to the store may do so: it is not done over HTTP.
func (a *app) tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "token", Short: "Create, list and revoke the tokens of redrive serve that are kept in the store",
		Args: cobra.NoArgs,
		Long: `Create, list and revoke the tokens of redrive serve that are kept in the store, by their digests. The server takes them with
server.auth.stored: true. A token that is revoked is refused after five seconds.`,
	}
	cmd.AddCommand(a.tokenCreateCommand(), a.tokenListCommand(), a.tokenRevokeCommand())
	return cmd
}

// people is the part of the store that keeps tokens.
func (a *app) people(cmd *cobra.Command) (driver.PeopleStore, error) {
	if _, err := a.configuration(); err != nil {
		return nil, err
	}
	letters, err := a.open(cmd.Context())
	if err != nil {
		return nil, err
	}
	people, ok := driver.As[driver.PeopleStore](letters.Store())
	if !ok {
		return nil, usagef("this store keeps no tokens")
	}
	return people, nil
}

func (a *app) tokenCreateCommand() *cobra.Command {
	var role string
	var expires time.Duration
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a token and print it, once", Args: cobra.ExactArgs(1),
		Example: `  redrive token create ci --role operator --expires 2160h`,
		RunE: func(cmd *cobra.Command, args []string) error {
			parsed, err := dlqhttp.ParseRole(role)
			if err != nil {
				return usagef("%v", err)
			}
			if expires < 0 {
				return usagef("--expires %s: must not be negative", expires)
			}
			people, err := a.people(cmd)
			if err != nil {
				return err
			}
			text, now := "rdt_"+rand.Text()+rand.Text(), time.Now()
			token := driver.Token{
				Name: args[0], Role: parsed.String(), Digest: dlqhttp.HashToken(text), CreatedAt: now, CreatedBy: a.by().Actor,
			}
			if expires > 0 {
				token.ExpiresAt = now.Add(expires)
			}
			if err := people.PutToken(cmd.Context(), token); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
			return err
		},
	}
	cmd.Flags().StringVar(&role, "role", "viewer", "what its owner may do: viewer, operator, approver, admin")
	cmd.Flags().DurationVar(&expires, "expires", 0, "how long it is valid; for good if not given")
	return cmd
}

func (a *app) tokenListCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the tokens with their expiry and last use", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			people, err := a.people(cmd)
			if err != nil {
				return err
			}
			tokens, err := people.Tokens(cmd.Context())
			if err != nil {
				return err
			}
			for i := range tokens {
				t := &tokens[i]
				state := "valid"
				switch {
				case !t.RevokedAt.IsZero():
					state = "revoked by " + t.RevokedBy
				case !t.Valid(time.Now()):
					state = "expired"
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s\t%s\t%s\texpires %s\tused %s\n", t.Name, t.Role, state, day(t.ExpiresAt),
					day(t.UsedAt))
			}
			return nil
		},
	}
}

// day is a time in a list; never if absent.
func day(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format(time.RFC3339)
}

func (a *app) tokenRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "revoke NAME", Short: "Revoke a token", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			people, err := a.people(cmd)
			if err != nil {
				return err
			}
			return people.RevokeToken(cmd.Context(), args[0], dlq.By{Actor: a.by().Actor}, time.Now())
		},
	}
}
