package dlq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/dlq/driver"
)

// ErrNoNotices means that the store does not record notifications.
var ErrNoNotices = errors.New("this store does not record notifications")

func (m *Manager) notices(ctx context.Context) (driver.NoticeStore, error) {
	store, ok, err := optional[driver.NoticeStore](ctx, m.cfg.Store)
	if err == nil && !ok {
		err = fmt.Errorf("dlq: %w", ErrNoNotices)
	}
	return store, err
}

// Mute suppresses notifications of a cause for a period, or forever if it is 0, and replaces an earlier mute. The error
// wraps [ErrNotFound] when there is no such cause.
func (m *Manager) Mute(ctx context.Context, fingerprint string, period time.Duration, by By) (*driver.Mute, error) {
	store, err := m.notices(ctx)
	if err != nil {
		return nil, err
	}
	if period < 0 {
		return nil, fmt.Errorf("dlq: mute: %w: %s is negative", ErrInvalid, period)
	}
	groups, err := m.Groups(ctx, GroupQuery{Fingerprint: fingerprint, Limit: 1})
	if err != nil {
		return nil, err
	}
	if fingerprint == "" || len(groups) == 0 {
		return nil, fmt.Errorf("group %.64q: %w", fingerprint, ErrNotFound)
	}
	mute := driver.Mute{
		Fingerprint: fingerprint, By: by.Actor, Note: by.Note, At: m.Now(ctx).UTC().Truncate(time.Microsecond),
	}
	if period > 0 {
		mute.Until = mute.At.Add(period)
	}
	if err := store.Mute(ctx, mute); err != nil {
		return nil, err
	}
	return &mute, nil
}

// Unmute resumes the notifications of a cause. The error wraps [ErrNotFound] when it is not muted.
func (m *Manager) Unmute(ctx context.Context, fingerprint string, by By) error {
	store, err := m.notices(ctx)
	if err != nil {
		return err
	}
	return store.Unmute(ctx, fingerprint, by, m.Now(ctx))
}

// Mutes returns the current mutes, the latest first.
func (m *Manager) Mutes(ctx context.Context) ([]driver.Mute, error) {
	store, err := m.notices(ctx)
	if err != nil {
		return nil, err
	}
	return store.Mutes(ctx, m.Now(ctx))
}
