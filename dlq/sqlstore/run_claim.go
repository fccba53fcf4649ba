package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

// entries are the entries as they are before the step. Those that the caller knows are neither read nor locked: the
// updates check their version, and a row with another version ends the step with errStale.
func (p *stepping) entries(ctx context.Context, ids []int64) (map[int64]*dlq.Entry, error) {
	var unknown []int64
	for _, id := range ids {
		if p.step.Known[id] == nil {
			unknown = append(unknown, id)
		}
	}
	found, err := p.store.lockEntries(ctx, p.tx, unknown)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if e := p.step.Known[id]; e != nil {
			found[id] = e
		}
	}
	return found, nil
}

// updateEntries changes entries in the same way, given as they were before.
func (p *stepping) updateEntries(ctx context.Context, set string, before []*dlq.Entry, args ...any) error {
	byVersion := map[int64][]int64{} // a few: most entries of a run have the same history
	for _, e := range before {
		byVersion[e.Version] = append(byVersion[e.Version], e.ID)
	}
	for _, version := range slices.Sorted(maps.Keys(byVersion)) {
		ids := byVersion[version]
		n, err := p.updateIn(ctx, "id", "UPDATE dlq_entries SET "+set+" WHERE version = ?", ids,
			slices.Concat(args, []any{version}))
		if err != nil {
			return err
		}
		if n != int64(len(ids)) {
			return errStale
		}
	}
	return nil
}

// updateItems changes those of the run's items that meet a condition, and returns their number.
func (p *stepping) updateItems(ctx context.Context, set, where string, ids []int64, args ...any) (int64, error) {
	return p.updateIn(ctx, "entry_id", "UPDATE dlq_run_items SET "+set+" WHERE "+where+" AND run_seq = ?", ids,
		slices.Concat(args, []any{p.run.seq}))
}

// updateIn adds a list of sorted ids to the condition of an update. Their range is for a database that has no
// statistics of a run's items yet, and would read all of them to find these.
func (p *stepping) updateIn(ctx context.Context, column, query string, ids []int64, args []any) (changed int64,
	err error,
) {
	if len(ids) == 0 {
		return 0, nil
	}
	query += " AND " + column + " >= ? AND " + column + " <= ? AND "
	args = append(slices.Clone(args), ids[0], ids[len(ids)-1])
	for in, list := range p.store.dialect.idIn(column, ids) {
		n, err := rowsAffected(p.store.exec(ctx, p.tx, query+in, slices.Concat(args, list)...))
		if err != nil {
			return 0, err
		}
		changed += n
	}
	return changed, nil
}

func rowsAffected(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (p *stepping) claim(ctx context.Context) error {
	if len(p.step.Claims) == 0 {
		return nil
	}
	claims := slices.SortedFunc(slices.Values(p.step.Claims),
		func(a, b redrive.Claim) int { return compareIDs(a.EntryID, b.EntryID) })
	ids := make([]int64, len(claims))
	for i := range claims {
		ids[i] = claims[i].EntryID
	}
	items, err := p.claimable(ctx, claims, ids)
	if err != nil {
		return err
	}
	entries, err := p.entries(ctx, ids)
	if err != nil {
		return err
	}
	var ours []*dlq.Entry
	for i := range claims {
		c, before := &claims[i], entries[ids[i]]
		item, waiting := items[ids[i]]
		if !waiting || item.Version != c.Version {
			continue
		}
		after, err := p.claimOne(c, before)
		if err != nil {
			if p.step.Known != nil {
				return errStale // the stored entry is newer
			}
			state, detail := item.Refused(before, p.step.At, err)
			if err := p.setItem(ctx, item, state, detail); err != nil {
				return err
			}
			continue
		}
		if c.Body != nil {
			if err := p.revise(ctx, &after, c.Body); err != nil {
				return err
			}
		}
		ours = append(ours, before)
		p.claimed = append(p.claimed, after)
	}
	at := p.store.dialect.time(p.step.At)
	err = p.updateEntries(ctx, "status = 'RETRYING', version = version + 1, retry_count = retry_count + 1, "+
		"last_retry_at = ?,"+
		" lease_until = ?, run_id = ?, changed_at = ?, changed_by = ?", ours,
		at, p.store.dialect.time(p.step.At.Add(p.step.OutcomeTimeout)), p.run.ID, at, p.step.Actor)
	if err != nil {
		return err
	}
	return p.claimItems(ctx)
}

// claimable are the claims' waiting items. Only the holder of the run's lease changes them, so that a caller who knows
// the entries, which came with their items, knows these, too.
func (p *stepping) claimable(ctx context.Context, claims []redrive.Claim, ids []int64) (map[int64]redrive.Item, error) {
	if p.step.Known == nil {
		return p.items(ctx, ids, redrive.ItemWaiting)
	}
	items := make(map[int64]redrive.Item, len(claims))
	for i := range claims {
		items[ids[i]] = redrive.Item{RunItem: wire.RunItem{
			EntryID: ids[i], State: redrive.ItemWaiting, Version: claims[i].Version,
		}}
	}
	return items, nil
}

// claimItems writes the items of the claimed entries: a claim has increased their version by one, and their redrive
// count is the same for most of them.
func (p *stepping) claimItems(ctx context.Context) error {
	type life struct {
		version int64
		redrive int
	}
	byLife := map[life][]int64{}
	for i := range p.claimed {
		l := life{p.claimed[i].Version, p.claimed[i].RedriveCount}
		byLife[l] = append(byLife[l], p.claimed[i].ID)
	}
	until := p.store.dialect.time(p.step.At.Add(p.step.ClaimTimeout))
	lives := slices.SortedFunc(maps.Keys(byLife), func(a, b life) int {
		return cmp.Or(cmp.Compare(a.version, b.version), cmp.Compare(a.redrive, b.redrive))
	})
	for _, l := range lives {
		ids := byLife[l]
		n, err := p.updateItems(ctx, "state = 'claimed', claimed_until = ?, detail = NULL, version = version + 1, redrive "+
			"= ?",
			"state = 'waiting' AND version = ?", ids, until, l.redrive, l.version-1)
		if err != nil {
			return err
		}
		if n != int64(len(ids)) {
			return errStale
		}
		p.run.Counts.Waiting -= n
		p.run.Counts.Claimed += n
	}
	return nil
}

// claimOne applies the state machine. The update of all claimed entries writes what it returns.
func (p *stepping) claimOne(claim *redrive.Claim, before *dlq.Entry) (dlq.Entry, error) {
	if before == nil {
		return dlq.Entry{}, fmt.Errorf("entry %d was purged: %w", claim.EntryID, dlq.ErrNotFound)
	}
	c := p.change(driver.ActionRedrive)
	c.Version = claim.Version
	after, err := c.Apply(*before)
	if err != nil {
		return after, err
	}
	p.record(c, before, &after)
	return after, nil
}
