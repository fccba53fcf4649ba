// Command generate writes employees.ndjson, the input of the employees example: 3,000 events of three topics, exactly
// 1,000 of them invalid, one a line in the form that "kcat -J" prints records in. The same seed gives the same
// file; run it from examples/employees with
//
//	go run ./generate > employees.ndjson
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/redrive-go/redrive/examples/internal/cpf"
)

const (
	events  = 3000
	invalid = 1000
)

type record struct {
	Topic   string `json:"topic"`
	Key     string `json:"key"`
	Payload string `json:"payload"`
}

type employee struct {
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

var (
	first = []string{
		"Ana", "Bruno", "Camila", "Diego", "Eduarda", "Felipe", "Gabriela", "Henrique", "Isabela", "João",
		"Larissa", "Marcos", "Natália", "Otávio", "Patrícia", "Rafael", "Sofia", "Thiago", "Vitória", "Zélia",
	}
	last = []string{
		"Almeida", "Barbosa", "Cardoso", "Dias", "Esteves", "Ferreira", "Gonçalves", "Lima", "Magalhães",
		"Nogueira", "Oliveira", "Pereira", "Ramos", "Santos", "Teixeira", "Vasconcelos",
	}
	units = []string{"São Paulo", "São Paulo", "São Paulo", "Curitiba", "Recife", "Belo Horizonte", "Manaus"}
)

func main() {
	random := rand.New(rand.NewPCG(2026, 48)) //nolint:gosec // the same file each time
	wrong := map[int]bool{}
	for _, n := range random.Perm(events)[:invalid] {
		wrong[n] = true
	}
	out := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	var staff []employee
	broken := 0
	for n := range events {
		topic, e := event(random, &staff)
		payload := encode(e)
		if wrong[n] {
			payload = spoil(random, broken, &e, payload)
			broken++
		}
		if err := encoder.Encode(record{topic, e.ID, string(payload)}); err != nil {
			panic(err) // three strings
		}
	}
	if err := out.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

// event hires an employee, or changes or ends the contract of one.
func event(random *rand.Rand, staff *[]employee) (topic string, e employee) {
	if len(*staff) < 50 || random.IntN(10) < 6 {
		hired := time.Date(2010+random.IntN(16), time.Month(1+random.IntN(12)), 1+random.IntN(28), 0, 0, 0, 0, time.UTC)
		e = employee{
			ID:          fmt.Sprintf("EMP-%06d", 10001+len(*staff)),
			Version:     1,
			Name:        first[random.IntN(len(first))] + " " + last[random.IntN(len(last))],
			CPF:         cpf.Format(100_000_000 + random.IntN(899_999_999)),
			BirthDate:   hired.AddDate(-18-random.IntN(40), -random.IntN(12), -random.IntN(28)).Format(time.DateOnly),
			HiredOn:     hired.Format(time.DateOnly),
			Unit:        units[random.IntN(len(units))],
			SalaryCents: 180_000 + 1000*random.IntN(1200),
		}
		*staff = append(*staff, e)
		return "employee-create", e
	}
	i := random.IntN(len(*staff))
	current := &(*staff)[i]
	current.Version++
	if current.DismissedOn != "" || random.IntN(4) > 0 {
		current.SalaryCents += 1000 * random.IntN(200)
		return "employee-update", *current
	}
	hired, _ := time.Parse(time.DateOnly, current.HiredOn)
	current.DismissedOn = hired.AddDate(random.IntN(9), 1+random.IntN(12), 0).Format(time.DateOnly)
	return "employee-delete", *current
}

// spoil makes the n-th invalid event of e: of ten, four have a wrong CPF, two are of a child, two have dates in the
// wrong order, one has two faults at once, and one is not JSON.
func spoil(random *rand.Rand, n int, e *employee, payload []byte) []byte {
	hired, _ := time.Parse(time.DateOnly, e.HiredOn)
	wrongCPF := func() {
		last := e.CPF[len(e.CPF)-1]
		e.CPF = e.CPF[:len(e.CPF)-1] + string('0'+(last-'0'+1)%10)
	}
	switch n % 10 {
	case 0, 1, 2:
		wrongCPF()
	case 3:
		e.CPF = "111.111.111-11"
	case 4, 5:
		e.BirthDate = hired.AddDate(-15, 0, -random.IntN(300)).Format(time.DateOnly)
	case 6:
		e.BirthDate = hired.AddDate(1, 0, 0).Format(time.DateOnly)
	case 7:
		e.DismissedOn = hired.AddDate(0, -1, 0).Format(time.DateOnly)
	case 8:
		wrongCPF()
		e.BirthDate = hired.AddDate(-14, 0, 0).Format(time.DateOnly)
	case 9:
		return malformed(n/10, payload)
	}
	return encode(*e)
}

// malformed damages a payload as real producers do.
func malformed(n int, payload []byte) []byte {
	switch n % 4 {
	case 0:
		return payload[:len(payload)*2/3] // cut off
	case 1:
		return []byte(`<employee><id>EMP-1</id></employee>`)
	case 2:
		return []byte{} // a tombstone, which this system does not know
	default:
		return append(payload[:len(payload)-1:len(payload)-1], `,"salary_cents":}`...)
	}
}

func encode(e employee) []byte {
	payload, err := json.Marshal(e)
	if err != nil {
		panic(err) // an employee has no field that JSON cannot say
	}
	return payload
}
