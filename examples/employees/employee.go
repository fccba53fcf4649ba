package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redrive-go/redrive/examples/internal/cpf"
)

// Employee is an employee's record as an event carries it, whole: the registry keeps the one with the highest version,
// so that events may come twice and in any order.
type Employee struct {
	ID          string `json:"id"`
	Version     int    `json:"version"`
	Name        string `json:"name"`
	CPF         string `json:"cpf"`
	BirthDate   string `json:"birth_date"`
	HiredOn     string `json:"hired_on"`
	DismissedOn string `json:"dismissed_on,omitempty"`
	Unit        string `json:"unit"`
	SalaryCents int    `json:"salary_cents"`
}

const minimumAge = 16 // on the day of hiring

// ValidationError has the faults of an event. Its text starts as the system's dashboards expect it.
type ValidationError struct {
	Kind   string   // cpf, age, dates or required: the first fault
	Faults []string // all faults, for people
}

// Error returns all faults in one line.
func (e *ValidationError) Error() string {
	return "Falha na validação: " + strings.Join(e.Faults, "; ")
}

// Permanent tells the pipeline, which looks for this method on errors, that no retry can fix an invalid event.
func (e *ValidationError) Permanent() bool { return true }

// Code is stored with the dead letter, in error_code, so that faults can be counted by kind.
func (e *ValidationError) Code() string { return e.Kind }

// validate returns nil or a *ValidationError with everything that is wrong with the employee.
func (e *Employee) validate() error {
	var v ValidationError
	fault := func(wrong bool, kind, text string) {
		if !wrong {
			return
		}
		v.Kind = cmp.Or(v.Kind, kind)
		v.Faults = append(v.Faults, text)
	}
	fault(e.ID == "" || e.Name == "", "required", "matrícula e nome são obrigatórios")
	fault(!cpf.Valid(e.CPF), "cpf", "CPF inválido")

	born, bornErr := time.Parse(time.DateOnly, e.BirthDate)
	hired, hiredErr := time.Parse(time.DateOnly, e.HiredOn)
	fault(bornErr != nil, "dates", "data de nascimento inválida")
	fault(hiredErr != nil, "dates", "data de admissão inválida")
	if bornErr == nil && hiredErr == nil {
		fault(hired.Before(born), "dates", "admissão anterior ao nascimento")
		fault(!hired.Before(born) && born.AddDate(minimumAge, 0, 0).After(hired), "age", "idade inferior a 16 anos")
	}
	if e.DismissedOn != "" {
		dismissed, err := time.Parse(time.DateOnly, e.DismissedOn)
		fault(err != nil, "dates", "data de desligamento inválida")
		fault(err == nil && hiredErr == nil && dismissed.Before(hired), "dates", "desligamento anterior à admissão")
	}
	if len(v.Faults) == 0 {
		return nil
	}
	return &v
}

// registry is the payroll's register of employees. The line to the unit in Manaus is bad: for each event the first call
// times out, the second finds no listener, the third gets through. Safe for concurrent use.
type registry struct {
	mu        sync.Mutex
	calls     map[string]int // to Manaus, by event
	employees map[string]Employee
}

const badLine = "Manaus"

func newRegistry() *registry {
	return &registry{calls: map[string]int{}, employees: map[string]Employee{}}
}

// save stores the employee unless a later version is stored already. It may be called any number of times.
func (r *registry) save(_ context.Context, e Employee) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Unit == badLine {
		event := fmt.Sprintf("%s/%d", e.ID, e.Version)
		r.calls[event]++
		switch r.calls[event] {
		case 1:
			return fmt.Errorf("registry in %s: %w", e.Unit, context.DeadlineExceeded)
		case 2:
			return fmt.Errorf("registry in %s: %w", e.Unit, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
		}
	}
	if r.employees[e.ID].Version <= e.Version {
		r.employees[e.ID] = e
	}
	return nil
}

// headcount returns the number of employees, without dismissed ones.
func (r *registry) headcount() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.employees {
		if e.DismissedOn == "" {
			n++
		}
	}
	return n
}
