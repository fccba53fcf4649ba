package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	fit "github.com/redrive-go/redrive/dlq/internal/text"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// maxDetail limits the detail of an item, in bytes; the entry and the audit log have all of it.
const maxDetail = 1 << 10

// StepRun does one step of a run in one transaction, and retries with the stored entries when the caller's copies are
// stale.
func (s *Store) StepRun(ctx context.Context, step redrive.Step) (redrive.Stepped, error) {
	stepped, err := s.stepRun(ctx, step)
	if step.Known != nil && errors.Is(err, errStale) {
		step.Known = nil
		return s.stepRun(ctx, step)
	}
	return stepped, err
}

func (s *Store) stepRun(ctx context.Context, step redrive.Step) (redrive.Stepped, error) {
	return writing(ctx, s, "step of run "+step.Run, func(tx *sql.Tx) (stepped redrive.Stepped, err error) {
		run, err := s.heldRun(ctx, tx, step.Run, step.Holder, step.At)
		if err != nil {
			return stepped, err
		}
		p := &stepping{changes: changes{store: s, tx: tx}, step: &step, run: run}
		for _, phase := range []func(context.Context) error{p.published, p.released, p.skipped, p.claim} {
			if err := phase(ctx); err != nil {
				return stepped, err
			}
		}
		run.LeaseUntil = step.At.Add(step.Lease).UTC().Truncate(time.Microsecond)
		if err := s.saveRun(ctx, tx, run); err != nil {
			return stepped, err
		}
		return redrive.Stepped{Run: &run.Run, Claimed: p.claimed, Changed: p.results()}, p.writeAll(ctx)
	})
}

// stepping is one step of a run. Its items do not change meanwhile, because only the holder of the run's lease changes
// them.
type stepping struct {
	changes

	step    *redrive.Step
	run     *runRow
	claimed []dlq.Entry
}

func (p *stepping) published(ctx context.Context) error {
	ids := slices.Sorted(slices.Values(p.step.Published))
	if !p.step.ClosePublished {
		return p.moveItems(ctx, ids, redrive.ItemClaimed, redrive.ItemOut)
	}
	entries, err := p.entries(ctx, ids)
	if err != nil {
		return err
	}
	c := p.action(driver.ActionSucceed)
	c.Note = "published; no outcome is awaited"
	var closed, changed []int64 // changed since their claim, for example by another death: SettleRun sees how
	for _, id := range ids {
		if e := entries[id]; e != nil && e.Run == p.run.ID {
			if after, err := c.Apply(*e); err == nil {
				p.record(c, e, &after)
				closed = append(closed, id)
				continue
			}
		}
		changed = append(changed, id)
	}
	if err := p.moveItems(ctx, closed, redrive.ItemClaimed, redrive.ItemSucceeded); err != nil {
		return err
	}
	return p.moveItems(ctx, changed, redrive.ItemClaimed, redrive.ItemOut)
}

func (p *stepping) released(ctx context.Context) error {
	return p.refuse(ctx, p.step.Released, redrive.ItemWaiting)
}

func (p *stepping) skipped(ctx context.Context) error {
	return p.refuse(ctx, p.step.Skipped, redrive.ItemSkipped)
}

// refuse gives items up, and releases the claims on their entries. If an entry has changed since its claim, it is left
// alone, and its item is settled by that change.
func (p *stepping) refuse(ctx context.Context, refusals []redrive.Refusal, to redrive.ItemState) error {
	if len(refusals) == 0 {
		return nil
	}
	ids := make([]int64, len(refusals))
	byID := make(map[int64]redrive.Refusal, len(refusals))
	for i, r := range refusals {
		ids[i], byID[r.EntryID] = r.EntryID, r
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	items, err := p.items(ctx, ids, redrive.ItemWaiting, redrive.ItemClaimed)
	if err != nil {
		return err
	}
	entries, err := p.store.lockEntries(ctx, p.tx, ids)
	if err != nil {
		return err
	}
	for _, id := range ids {
		item, e, state, detail := items[id], entries[id], to, byID[id].Detail
		switch {
		case item.State == redrive.ItemClaimed && e != nil:
			e = p.now(e)
			item.Redrive = 0 // it was not sent
			c := p.action(driver.ActionRelease)
			c.Version, c.Note, c.Before = item.Version, detail, byID[id].Before
			after, err := c.Apply(*e)
			if err != nil {
				continue
			}
			p.record(c, e, &after)
			item.Version = after.Version
		case item.State != redrive.ItemWaiting:
			continue
		case to == redrive.ItemSkipped:
			state, detail = item.Refused(e, p.step.At, errors.New(detail))
			p.unclaim(item, e)
		}
		if err := p.setItem(ctx, item, state, detail); err != nil {
			return err
		}
	}
	return nil
}

func (p *stepping) claim(ctx context.Context) error {
	if len(p.step.Claims) == 0 || p.run.State != redrive.Running {
		return nil
	}
	claims := slices.SortedFunc(slices.Values(p.step.Claims),
		func(a, b redrive.Claim) int { return cmp.Compare(a.EntryID, b.EntryID) })
	ids := sqldb.Map(claims, func(c *redrive.Claim) int64 { return c.EntryID })
	items, err := p.claimable(ctx, claims, ids)
	if err != nil {
		return err
	}
	entries, err := p.entries(ctx, ids)
	if err != nil {
		return err
	}
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
			if err := p.store.addRevision(ctx, p.tx, after, c.Body); err != nil {
				return err
			}
			p.audit[len(p.audit)-1].Detail = map[string]string{"revision": strconv.Itoa(after.Revision)}
		}
		p.claimed = append(p.claimed, *after)
	}
	return p.claimItems(ctx)
}

// claimable are the waiting items of the claims. A caller that knows the entries also knows the items, because only the
// holder of the run's lease, which it is, changes them.
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

func (p *stepping) claimOne(claim *redrive.Claim, before *dlq.Entry) (*dlq.Entry, error) {
	if before == nil {
		return nil, fmt.Errorf("entry %d was purged: %w", claim.EntryID, dlq.ErrNotFound)
	}
	c := p.action(driver.ActionRedrive)
	c.Version = claim.Version
	after, err := c.Apply(*before)
	if err != nil {
		return nil, err
	}
	p.record(c, before, &after)
	return &after, nil
}

// claimItems writes the items of the claimed entries, with one statement for all of the same version and redrive count.
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
		n, err := p.updateItems(ctx,
			"state = 'claimed', claimed_until = ?, detail = NULL, version = version + 1, redrive = ?",
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

// entries are the current entries. Those that the caller knows are neither read nor locked; if one has another version
// in the store, its update ends the step with errStale.
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
		if e := found[id]; e != nil {
			found[id] = p.now(e)
		}
	}
	return found, nil
}

func (p *stepping) action(action driver.Action) driver.Change {
	return driver.Change{Action: action, Actor: p.step.Actor, At: p.step.At, Lease: p.step.OutcomeTimeout, Run: p.run.ID}
}

// items reads items of the run that are in one of the states; the others are not in the map. Here and below the states
// are part of the condition because a database without statistics of a new run's items would otherwise read all of them
// to find a few.
func (p *stepping) items(ctx context.Context, ids []int64, states ...redrive.ItemState) (map[int64]redrive.Item,
	error,
) {
	found := make(map[int64]redrive.Item, len(ids))
	for _, state := range states {
		for in, args := range p.store.dialect.idIn("entry_id", ids) {
			items, err := scanItems(p.store.query(ctx, p.tx, selectItem+
				" WHERE run_seq = ? AND state = ? AND "+in, slices.Concat([]any{p.run.seq, string(state)}, args)...))
			if err != nil {
				return nil, err
			}
			for _, item := range items {
				found[item.EntryID] = item
			}
		}
	}
	return found, nil
}

// updateItems changes those of the run's items that meet a condition, and returns their number. The range of the sorted
// ids helps a database without statistics, as above.
func (p *stepping) updateItems(ctx context.Context, set, where string, ids []int64, args ...any) (int64, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	query := "UPDATE dlq_run_items SET " + set + " WHERE " + where +
		" AND run_seq = ? AND entry_id >= ? AND entry_id <= ? AND "
	return p.store.execIn(ctx, p.tx, ids, inIDs{query, "entry_id", append(args, p.run.seq, ids[0], ids[len(ids)-1])})
}

func (p *stepping) moveItems(ctx context.Context, ids []int64, from, to redrive.ItemState) error {
	var settled any
	if to == redrive.ItemSucceeded {
		settled = p.store.dialect.time(p.step.At)
	}
	n, err := p.updateItems(ctx, "state = ?, claimed_until = NULL, settled_at = ?", "state = ?", ids, string(to), settled,
		string(from))
	p.run.Counts.Add(from, -n)
	p.run.Counts.Add(to, n)
	return err
}

// setItem writes one item's state, version and detail.
func (p *stepping) setItem(ctx context.Context, item redrive.Item, to redrive.ItemState, detail string) error {
	p.run.Counts.Add(item.State, -1)
	p.run.Counts.Add(to, 1)
	var settled any
	if to != redrive.ItemWaiting {
		settled = p.store.dialect.time(p.step.At)
	}
	n, err := sqldb.Changed(p.store.exec(ctx, p.tx,
		"UPDATE dlq_run_items SET state = ?, version = ?, redrive = ?, claimed_until = NULL,"+
			" settled_at = ?, detail = ? WHERE run_seq = ? AND state = ? AND entry_id = ?",
		string(to), item.Version, item.Redrive, settled, null(fit.Clean(detail, maxDetail)), p.run.seq,
		string(item.State), item.EntryID))
	if err == nil && n != 1 && to != item.State {
		err = errStale
	}
	return err
}
