package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// maxDetail limits the detail of an item, in bytes; the entry and the audit log have all of it.
const maxDetail = 1 << 10

// errStale ends a step that relied on the caller's copy of an entry which has changed since.
var errStale = errors.New("an entry or an item has changed since it was read")

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
		p := &stepping{store: s, tx: tx, step: &step, run: run}
		for _, phase := range []func(context.Context) error{p.published, p.released, p.skipped, p.claim} {
			if err := phase(ctx); err != nil {
				return stepped, err
			}
		}
		run.LeaseUntil = step.At.Add(step.Lease).UTC().Truncate(time.Microsecond)
		if err := s.saveRun(ctx, tx, run); err != nil {
			return stepped, err
		}
		if err := s.insertAudit(ctx, tx, p.audit); err != nil {
			return stepped, err
		}
		return redrive.Stepped{Run: &run.Run, Claimed: p.claimed}, p.deltas.apply(ctx, s, tx)
	})
}

// stepping is one step. Only the holder of the run's lease changes its items, so what is read of them here does not
// change.
type stepping struct {
	store   *Store
	tx      *sql.Tx
	step    *redrive.Step
	run     *runRow
	deltas  deltas
	audit   []driver.AuditRecord
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
	c := p.change(driver.ActionSucceed)
	c.Note = "published; no outcome is awaited"
	var closed []*dlq.Entry
	for _, id := range ids {
		e := entries[id]
		if e == nil || e.Run != p.run.ID || e.Status != dlq.Retrying {
			continue // closed already, by a late outcome
		}
		after, err := c.Apply(*e)
		if err != nil {
			continue
		}
		closed = append(closed, e)
		p.record(c, e, &after)
	}
	at := p.store.dialect.time(p.step.At)
	err = p.updateEntries(ctx, "status = 'RESOLVED', version = version + 1, succeeded_at = ?, resolved_at = ?,"+
		" resolved_by = ?, lease_until = NULL, changed_at = ?, changed_by = ?", closed, at, at, p.step.Actor, at,
		p.step.Actor)
	if err != nil {
		return err
	}
	return p.moveItems(ctx, ids, redrive.ItemClaimed, redrive.ItemSucceeded)
}

func (p *stepping) released(ctx context.Context) error {
	return p.refuse(ctx, p.step.Released, redrive.ItemWaiting)
}

func (p *stepping) skipped(ctx context.Context) error {
	return p.refuse(ctx, p.step.Skipped, redrive.ItemSkipped)
}

// refuse gives items up, and releases the claims on their entries. An entry that has changed since its claim is left
// alone: its item is settled by what happened to it.
func (p *stepping) refuse(ctx context.Context, refusals []redrive.Refusal, to redrive.ItemState) error {
	if len(refusals) == 0 {
		return nil
	}
	ids := make([]int64, len(refusals))
	details := make(map[int64]string, len(refusals))
	for i, r := range refusals {
		ids[i], details[r.EntryID] = r.EntryID, r.Detail
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
		item, e := items[id], entries[id]
		if item.State == redrive.ItemClaimed && e != nil {
			item.Redrive = 0 // it was not sent
			c := p.change(driver.ActionRelease)
			c.Version, c.Note = item.Version, details[id]
			after, err := c.Apply(*e)
			if err != nil {
				continue
			}
			if err := p.store.updateEntry(ctx, p.tx, &after); err != nil {
				return err
			}
			p.record(c, e, &after)
			item.Version = after.Version
		} else if item.State != redrive.ItemWaiting {
			continue
		}
		if err := p.setItem(ctx, item, to, details[id]); err != nil {
			return err
		}
	}
	return nil
}

func (p *stepping) revise(ctx context.Context, e *dlq.Entry, body *dlq.Body) error {
	if err := p.store.addRevision(ctx, p.tx, e, body); err != nil {
		return err
	}
	_, err := p.store.exec(ctx, p.tx, "UPDATE dlq_entries SET revision = ?, payload_size = ? WHERE id = ?",
		e.Revision, e.Size, e.ID)
	last := &p.audit[len(p.audit)-1]
	last.Detail = map[string]string{"revision": strconv.Itoa(e.Revision)}
	return err
}

func (p *stepping) change(action driver.Action) driver.Change {
	return driver.Change{Action: action, Actor: p.step.Actor, At: p.step.At, Lease: p.step.OutcomeTimeout, Run: p.run.ID}
}

func (p *stepping) record(c driver.Change, before, after *dlq.Entry) {
	p.deltas.change(before, after)
	p.audit = append(p.audit, driver.AuditRecord{
		At: c.At, Actor: c.Actor, Action: c.Action, Note: c.Note, EntryID: after.ID, Run: p.run.ID,
		From: before.Status, To: after.Status, Version: after.Version,
	})
}

// items reads items of the run that are in one of the states; the others are not in the map. The states are named, here
// and below, because a database that has no statistics of a new run's items would otherwise read all of them to find a
// few by their entries.
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

// moveItems moves items from one state to another.
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
	n, err := rowsAffected(p.store.exec(ctx, p.tx,
		"UPDATE dlq_run_items SET state = ?, version = ?, redrive = ?, claimed_until = NULL,"+
			" settled_at = ?, detail = ? WHERE run_seq = ? AND state = ? AND entry_id = ?",
		string(to), item.Version, item.Redrive, settled, null(bounded(detail)), p.run.seq, string(item.State), item.EntryID))
	if err == nil && n != 1 && to != item.State {
		err = errStale
	}
	return err
}
