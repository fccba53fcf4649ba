package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/driver"
)

// tokenCommand manages the tokens in a store. It requires write access to the store, and is not available over HTTP.
func (a *app) tokenCommand() *cobra.Command {
	return group("token", "Create, list and revoke the tokens of redrive serve that are kept in the store",
		`Create, list and revoke the tokens of redrive serve that are kept in the store, by their digests. The server accepts them with
server.auth.stored: true. A token that is revoked is refused after five seconds.`,
		a.tokenCreateCommand(), a.tokenListCommand(), a.tokenRevokeCommand())
}

// people is a command that begins with the part of the store that keeps tokens.
func (a *app) people(do func(context.Context, driver.PeopleStore, []string) error) func(*cobra.Command, []string,
) error {
	return func(cmd *cobra.Command, args []string) error {
		letters, err := a.openExisting(cmd.Context())
		if err != nil {
			return err
		}
		people, ok := driver.As[driver.PeopleStore](letters.Store())
		if !ok {
			return usagef("this store keeps no tokens")
		}
		return do(cmd.Context(), people, args)
	}
}

func (a *app) tokenCreateCommand() *cobra.Command {
	var role string
	var expires age
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a token and print it, once", Args: cobra.ExactArgs(1),
		Example: `  redrive token create ci --role operator --expires 90d`,
		RunE: a.people(func(ctx context.Context, people driver.PeopleStore, args []string) error {
			parsed, err := dlqhttp.ParseRole(role)
			if err != nil {
				return usagef("%v", err)
			}
			text, now := "rdt_"+rand.Text()+rand.Text(), time.Now()
			token := driver.Token{
				Name: args[0], Role: parsed.String(), Digest: dlqhttp.HashToken(text), CreatedAt: now, CreatedBy: a.by().Actor,
			}
			if expires > 0 {
				token.ExpiresAt = now.Add(time.Duration(expires))
			}
			if err := people.PutToken(ctx, token); err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.out, text)
			return err
		}),
	}
	cmd.Flags().StringVar(&role, "role", "viewer", "what its owner may do: metrics, viewer, operator, approver, admin")
	cmd.Flags().Var(&expires, "expires", "how long it is valid: 24h, 90d (default forever)")
	return cmd
}

func (a *app) tokenListCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the tokens with their expiry and last use", Args: cobra.NoArgs,
		RunE: a.people(func(ctx context.Context, people driver.PeopleStore, _ []string) error {
			tokens, err := people.Tokens(ctx)
			if err != nil {
				return err
			}
			views := make([]tokenView, 0, len(tokens))
			for i := range tokens {
				views = append(views, tokenOf(&tokens[i], time.Now()))
			}
			return printPage(a, views, tokenColumns(), "no tokens", "")
		}),
	}
}

// tokenView is a token in the output for programs.
type tokenView struct {
	driver.Token

	State string `json:"state"`
}

func tokenOf(t *driver.Token, now time.Time) tokenView {
	v := tokenView{*t, "valid"}
	switch {
	case !t.RevokedAt.IsZero():
		v.State = "revoked"
	case !t.Valid(now):
		v.State = "expired"
	}
	return v
}

func tokenColumns() []column[tokenView] {
	return []column[tokenView]{
		{title: "Name", value: func(v tokenView) string { return oneLine(v.Name, 40) }},
		{title: "Role", value: func(v tokenView) string { return v.Role }},
		{title: "State", value: func(v tokenView) string { return v.State }},
		{title: "Expires", value: func(v tokenView) string { return cmp.Or(stampOf(v.ExpiresAt), "never") }},
		{title: "Used", value: func(v tokenView) string { return cmp.Or(stampOf(v.UsedAt), "never") }},
		{title: "Created", wide: true, value: func(v tokenView) string { return stampOf(v.CreatedAt) }},
		{title: "By", wide: true, value: func(v tokenView) string { return oneLine(v.CreatedBy, 30) }},
		{title: "Revoked by", wide: true, value: func(v tokenView) string { return oneLine(v.RevokedBy, 30) }},
	}
}

func (a *app) tokenRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "revoke NAME", Short: "Revoke a token", Args: cobra.ExactArgs(1),
		RunE: a.people(func(ctx context.Context, people driver.PeopleStore, args []string) error {
			by := a.by()
			return people.RevokeToken(ctx, args[0], dlq.By{Actor: by.Actor, Note: by.Note}, time.Now())
		}),
	}
}
