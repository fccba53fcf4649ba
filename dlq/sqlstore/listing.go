package sqlstore

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// maxBranches is the maximum number of index ranges for one page.
const maxBranches = 64

// branches splits a filter into parts that each are one index range in the order of a listing. The indexes begin with
// status, or with fingerprint, topic or event type and then status: "any status of this topic" is not a range of any of
// them, and a database would sort the whole topic for a page of 50. The first rows of each part, merged, are the page,
// however large the table is.
func (s *Store) branches(ctx context.Context, f dlq.Filter, p dlq.Page) ([]dlq.Filter, error) {
	parts := []dlq.Filter{f}
	if p.Order.ByID() {
		return parts, nil // the primary key has this order
	}
	if f.CauseText != "" && f.Fingerprint == "" {
		found, err := s.fingerprints(ctx, f.CauseText)
		if err != nil || len(found)*len(driver.Statuses()) > maxBranches {
			return parts, err // a text in half of the causes is left to the database
		}
		parts = parts[:0]
		for _, fingerprint := range found {
			part := f
			part.Fingerprint, part.CauseText = fingerprint, ""
			parts = append(parts, part)
		}
	}
	statuses := f.Statuses
	if f.IDs != nil || f.EventID != "" || f.SourceID != "" || f.CorrelationID != "" || f.Run != "" {
		return parts, nil // few rows, found by another index
	}
	if len(statuses) == 0 {
		statuses = driver.Statuses()
	}
	statuses = slices.Compact(slices.Sorted(slices.Values(statuses))) // one named twice is not two ranges
	branches := make([]dlq.Filter, 0, len(parts)*len(statuses))
	for _, part := range parts {
		for _, status := range statuses {
			branch := part
			branch.Statuses = []dlq.Status{status}
			branches = append(branches, branch)
		}
	}
	return branches, nil
}

// fingerprints are the groups whose cause contains the text.
func (s *Store) fingerprints(ctx context.Context, text string) ([]string, error) {
	b := s.selectFrom("dlq_groups", "fingerprint")
	b.Where(s.dialect.contains("cause", b.Var(s.dialect.containsArg(text)))).Limit(maxBranches + 1)
	return sqldb.Column[string](s.find(ctx, b))
}

// listing is the statement for a page of the branches.
func (s *Store) listing(branches []dlq.Filter, p dlq.Page, c *driver.Cursor) (string, []any) {
	var query strings.Builder
	var args []any
	for i := range branches {
		b := s.selectFrom("dlq_entries", selectEntry)
		s.where(b, &branches[i])
		s.page(b, [2]string{"created_at", "id"}, p, c)
		var part string
		part, args = b.BuildWithFlavor(s.flavor(), args...)
		if len(branches) == 1 {
			return part, args
		}
		if i > 0 {
			query.WriteString(" UNION ALL ")
		}
		query.WriteString("SELECT * FROM (" + part + ") b" + strconv.Itoa(i))
	}
	direction := " DESC"
	if p.Order.Ascending() {
		direction = " ASC"
	}
	query.WriteString(" ORDER BY created_at" + direction + ", id" + direction + " LIMIT " + strconv.Itoa(p.Limit+1))
	return query.String(), args
}
