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

var _ driver.ServiceStore = (*Store)(nil)

// serviceColumns are the columns of dlq_services. The row without a process has the pause, the others have the reports.
var serviceColumns = []string{"service", "process", "at", "paused", "paused_by", "report"}

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
		row := &serviceRow{service: report.Service, process: report.Process, report: string(document)}
		found, err := s.replaceService(ctx, tx, report.At, row)
		if err != nil {
			return err
		}
		if !found { // a new process: remove those that ended long ago
			_, err := s.exec(ctx, tx, "DELETE FROM dlq_services WHERE service = ? AND process <> '' AND at < ?",
				report.Service, s.dialect.time(report.At.Add(-reportsKept)))
			if err != nil {
				return err
			}
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

// serviceRow is a row of dlq_services without its time.
type serviceRow struct {
	service, process string
	paused           int
	by, report       string
}

// replaceService writes a row, and reports whether there was one.
func (s *Store) replaceService(ctx context.Context, tx *sql.Tx, at time.Time, row *serviceRow) (bool, error) {
	done, err := s.exec(ctx, tx,
		"UPDATE dlq_services SET at = ?, paused = ?, paused_by = ?, report = ? WHERE service = ? AND process = ?",
		s.dialect.time(at), row.paused, row.by, row.report, row.service, row.process)
	if err != nil {
		return false, err
	}
	if n, err := done.RowsAffected(); err != nil || n > 0 {
		return n > 0, err
	}
	_, err = s.exec(ctx, tx, "DELETE FROM dlq_services WHERE service = ? AND process = ?", row.service,
		row.process)
	if err != nil {
		return false, err
	}
	_, err = s.exec(ctx, tx, insertInto("dlq_services", serviceColumns, 1),
		row.service, row.process, s.dialect.time(at), row.paused, row.by, row.report)
	return false, err
}

// PauseIntake stores whether the processes of a service are to pause.
func (s *Store) PauseIntake(ctx context.Context, pause driver.IntakePause, audit driver.AuditRecord) error {
	if pause.Service == "" || len(pause.Service) > maxServiceName {
		return fmt.Errorf("sqlstore: pause intake: %w: service %.80q: 1 to %d bytes", dlq.ErrInvalid, pause.Service,
			maxServiceName)
	}
	row := &serviceRow{service: pause.Service, by: fit.Clean(pause.By, fit.MaxName)}
	if pause.Paused {
		row.paused = 1
	}
	return s.inTx(ctx, "pause intake", func(tx *sql.Tx) error {
		_, err := s.replaceService(ctx, tx, pause.At, row)
		if err != nil {
			return err
		}
		return s.insertAudit(ctx, tx, []driver.AuditRecord{audit})
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
