package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	fit "github.com/redrive-go/redrive/dlq/internal/text"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// services writes a row of dlq_services. The row without a process has the pause, the others have the reports.
var services = upsertion{
	table: "dlq_services", columns: []string{"service", "process", "at", "paused", "paused_by", "report"},
	key: []string{"service", "process"}, set: []string{"at", "paused", "paused_by", "report"},
}

const (
	// maxServiceName limits names, which are a key of the table.
	maxServiceName = 255
	// reportsKept is how long the report of an ended process is kept.
	reportsKept = 24 * time.Hour
)

// Beat stores the report of a process, and returns the pause of its service.
func (s *Store) Beat(ctx context.Context, report *driver.ServiceReport) (driver.IntakePause, error) {
	pause := driver.IntakePause{Service: report.Service}
	if len(report.Service) > maxServiceName || len(report.Process) > maxServiceName || report.Service == "" ||
		report.Process == "" {
		return pause, fmt.Errorf("sqlstore: beat: %w: service %.80q, process %.80q: 1 to %d bytes each", dlq.ErrInvalid,
			report.Service, report.Process, maxServiceName)
	}
	document, err := json.Marshal(report)
	if err != nil {
		return pause, fmt.Errorf("sqlstore: beat: %w", err)
	}
	err = s.inTx(ctx, "beat", func(tx *sql.Tx) error {
		// Look first, without a lock: on MySQL a DELETE waits for every row that it looks at, and reports would deadlock.
		const old = " FROM dlq_services WHERE service = ? AND process <> '' AND at < ?"
		args := []any{report.Service, s.dialect.time(report.At.Add(-reportsKept))}
		var n int
		err := s.queryRow(ctx, tx, "SELECT count(*)"+old, args...).Scan(&n)
		if err == nil && n > 0 {
			_, err = s.exec(ctx, tx, "DELETE"+old, args...)
		}
		if err != nil {
			return err
		}
		_, err = s.exec(ctx, tx, services.sql(s.dialect.name(), 1), report.Service, report.Process,
			s.dialect.time(report.At), 0, "", string(document))
		if err != nil {
			return err
		}
		var paused int
		err = s.queryRow(ctx, tx, "SELECT paused, paused_by, at FROM dlq_services WHERE service = ? AND process = ''",
			report.Service).
			Scan(&paused, &pause.By, timeValue{&pause.At})
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		pause.Paused = paused != 0
		return err
	})
	return pause, err
}

// PauseIntake stores whether the processes of a service are to pause.
func (s *Store) PauseIntake(ctx context.Context, pause driver.IntakePause, audit driver.AuditRecord) error {
	if pause.Service == "" || len(pause.Service) > maxServiceName {
		return fmt.Errorf("sqlstore: pause intake: %w: service %.80q: 1 to %d bytes", dlq.ErrInvalid, pause.Service,
			maxServiceName)
	}
	paused := 0
	if pause.Paused {
		paused = 1
	}
	return s.audited(ctx, "pause intake", audit, func(tx *sql.Tx) error {
		_, err := s.exec(ctx, tx, services.sql(s.dialect.name(), 1), pause.Service, "", s.dialect.time(pause.At), paused,
			fit.Clean(pause.By, fit.MaxName), "")
		return err
	})
}

// Services returns the services that have reported or are paused.
func (s *Store) Services(ctx context.Context, since time.Time) ([]driver.Service, error) {
	found, err := reading(s, "services", func() (found []driver.Service, err error) {
		err = sqldb.Each(s.rows(ctx, "SELECT service, process, at, paused, paused_by, report FROM dlq_services"+
			" WHERE at >= ? OR process = '' ORDER BY service, process", s.dialect.time(since)))(func(row sqldb.Row) error {
			var service, process, by, report string
			var at time.Time
			var paused int
			if err := row.Scan(&service, &process, timeValue{&at}, &paused, &by, &report); err != nil {
				return err
			}
			if len(found) == 0 || found[len(found)-1].Name != service {
				found = append(found, driver.Service{Name: service})
			}
			last := &found[len(found)-1]
			if process == "" {
				last.Pause = driver.IntakePause{Service: service, Paused: paused != 0, By: by, At: at}
				return nil
			}
			var r driver.ServiceReport
			if err := json.Unmarshal([]byte(report), &r); err != nil {
				return fmt.Errorf("report of %s %s: %w", service, process, err)
			}
			last.Processes = append(last.Processes, r)
			return nil
		})
		return found, err
	})
	found = slices.DeleteFunc(found, func(s driver.Service) bool { return len(s.Processes) == 0 && !s.Pause.Paused })
	slices.SortFunc(found, func(a, b driver.Service) int { return strings.Compare(a.Name, b.Name) })
	return found, err
}
