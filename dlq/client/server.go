package client

import (
	"context"
	"encoding/json"
	"time"

	"github.com/redrive-go/redrive/dlq/wire"
)

// ListGroups returns causes, those with the most entries first.
func (c *Client) ListGroups(ctx context.Context, q wire.GroupQuery) (*wire.GroupList, error) {
	return ask[wire.GroupList](ctx, c, get(values(q), "groups"))
}

// GetStats returns the numbers of a dashboard.
func (c *Client) GetStats(ctx context.Context, q wire.StatsQuery) (*wire.Stats, error) {
	return ask[wire.Stats](ctx, c, get(values(q), "stats"))
}

// ListAudit returns a page of the audit log.
func (c *Client) ListAudit(ctx context.Context, q wire.AuditQuery, p wire.Page) (*wire.AuditList, error) {
	return ask[wire.AuditList](ctx, c, get(values(q, p), "audit"))
}

// ListMutes returns the causes without notifications.
func (c *Client) ListMutes(ctx context.Context) (*wire.MuteList, error) {
	return ask[wire.MuteList](ctx, c, get(nil, "mutes"))
}

// MuteGroup stops the notifications of a cause for a time; 0 means permanently.
func (c *Client) MuteGroup(ctx context.Context, fingerprint string, period time.Duration, by By) (*wire.Mute, error) {
	body := wire.MuteRequest{Seconds: period.Seconds(), Note: wire.Note{Note: by.Note}}
	return ask[wire.Mute](ctx, c, post(by, body, "groups", fingerprint, "mute"))
}

// UnmuteGroup resumes the notifications of a cause, and returns what is still muted.
func (c *Client) UnmuteGroup(ctx context.Context, fingerprint string, by By) (*wire.MuteList, error) {
	return ask[wire.MuteList](ctx, c, post(by, wire.Note{Note: by.Note}, "groups", fingerprint, "unmute"))
}

// GetReport returns which causes are new, grow, return or are fixed, over some hours; 0 is a week.
func (c *Client) GetReport(ctx context.Context, hours int) (*wire.Recurrence, error) {
	return ask[wire.Recurrence](ctx, c, get(values(struct {
		Hours int `query:"hours"`
	}{hours}), "report"))
}

// GetRetention returns how long closed entries are kept, and how many are due.
func (c *Client) GetRetention(ctx context.Context) (*wire.Retention, error) {
	return ask[wire.Retention](ctx, c, get(nil, "retention"))
}

// GetMe returns the caller and what it may do.
func (c *Client) GetMe(ctx context.Context) (*wire.Me, error) {
	return ask[wire.Me](ctx, c, get(nil, "me"))
}

// GetHealth returns the state of each component.
func (c *Client) GetHealth(ctx context.Context) (*wire.Health, error) {
	return ask[wire.Health](ctx, c, get(nil, "health"))
}

// ListRules returns the rules by which the server redrives automatically.
func (c *Client) ListRules(ctx context.Context) (*wire.RuleList, error) {
	return ask[wire.RuleList](ctx, c, get(nil, "rules"))
}

// GetTopology returns what the brokers have and what is planned, as the server's program shows it.
func (c *Client) GetTopology(ctx context.Context) (*json.RawMessage, error) {
	return ask[json.RawMessage](ctx, c, get(nil, "topology"))
}

// GetSettings returns the server's configuration, without secrets.
func (c *Client) GetSettings(ctx context.Context) (*json.RawMessage, error) {
	return ask[json.RawMessage](ctx, c, get(nil, "settings"))
}
