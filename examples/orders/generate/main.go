// Command generate writes orders.ndjson, the input of the orders example: one order a line, most of them good, some
// broken in each of the ways that occur in a shop. The same seed gives the same file; run it from examples/orders with
//
//	go run ./generate > orders.ndjson
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

const orders = 2400

type customer struct {
	Name      string `json:"name"`
	CPF       string `json:"cpf"`
	Email     string `json:"email"`
	BirthDate string `json:"birth_date"`
}

type item struct {
	SKU        string `json:"sku"`
	Name       string `json:"name"`
	Quantity   int    `json:"quantity"`
	PriceCents int    `json:"price_cents"`
}

type payment struct {
	Method       string `json:"method"`
	Token        string `json:"token"`
	Installments int    `json:"installments,omitempty"`
}

type delivery struct {
	City     string `json:"city"`
	State    string `json:"state"`
	Postcode string `json:"postcode"`
	By       string `json:"by"`
}

type order struct {
	ID         string   `json:"id"`
	PlacedAt   string   `json:"placed_at"`
	Customer   customer `json:"customer"`
	Items      []item   `json:"items"`
	TotalCents int      `json:"total_cents"`
	Coupon     *string  `json:"coupon,omitempty"`
	Payment    payment  `json:"payment"`
	Delivery   delivery `json:"delivery"`
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
	catalog = []item{
		{"CAF-250", "Café torrado 250 g", 0, 2890},
		{"CAF-1K", "Café torrado 1 kg", 0, 9490},
		{"FIL-103", "Filtro de papel 103", 0, 790},
		{"PRE-600", "Prensa francesa 600 ml", 0, 12990},
		{"MOE-MAN", "Moedor manual", 0, 18900},
		{"CAN-DUO", "Caneca dupla", 0, 4550},
		{"BAL-01", "Balança de precisão", 0, 8990},
		{"CHA-VD", "Chá verde 50 g", 0, 2190},
	}
	cities = []delivery{
		{City: "São Paulo", State: "SP", Postcode: "01310-100"},
		{City: "Rio de Janeiro", State: "RJ", Postcode: "20040-020"},
		{City: "Belo Horizonte", State: "MG", Postcode: "30130-010"},
		{City: "Curitiba", State: "PR", Postcode: "80020-310"},
		{City: "Recife", State: "PE", Postcode: "50030-230"},
		{City: "Porto Alegre", State: "RS", Postcode: "90010-150"},
		{City: "Manaus", State: "AM", Postcode: "69010-060"},
	}
	coupons  = []string{"CAFE10", "FRETE0", "VOLTA15"}
	zone     = time.FixedZone("-03:00", -3*60*60)
	dateOnly = time.DateOnly
)

// faults reports what is wrong with the n-th order: n modulo a prime, so that the
// faults are spread over the file and meet each other nowhere by design.
func faults(n int) string {
	for _, f := range []struct {
		every, at int
		fault     string
	}{
		{199, 12, "malformed"},
		{61, 7, "cpf"},
		{67, 31, "minor"},
		{83, 40, "dates"},
		{29, 3, "timeout-1"},
		{53, 20, "timeout-2"},
		{97, 50, "timeout-3"},
		{211, 100, "down"},
		{71, 11, "rate"},
		{103, 60, "declined"},
		{239, 119, "coupon"},
		{157, 77, "duplicate"},
	} {
		if n%f.every == f.at {
			return f.fault
		}
	}
	return ""
}

func main() {
	random := rand.New(rand.NewPCG(2026, 11)) //nolint:gosec // the same file each time
	out := bufio.NewWriter(os.Stdout)
	placed := time.Date(2026, 11, 2, 8, 0, 0, 0, zone)
	var earlier []byte
	for n := range orders {
		placed = placed.Add(time.Duration(20+random.IntN(400)) * time.Second)
		line := encode(makeOrder(random, n, placed))
		switch faults(n) {
		case "malformed":
			line = spoil(n, line)
		case "duplicate":
			line = earlier // the shop's front end sent an order twice
		default:
			earlier = line
		}
		_, _ = out.Write(line)
		_ = out.WriteByte('\n')
	}
	if err := out.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func makeOrder(random *rand.Rand, n int, placed time.Time) order {
	name, family := first[random.IntN(len(first))], last[random.IntN(len(last))]
	to := cities[random.IntN(len(cities))]
	to.By = placed.AddDate(0, 0, 2+random.IntN(9)).Format(dateOnly)
	o := order{
		ID:       fmt.Sprintf("ORD-2026-%06d", 118000+n),
		PlacedAt: placed.Format(time.RFC3339),
		Customer: customer{
			Name:      name + " " + family,
			CPF:       cpf.Format(100_000_000 + random.IntN(899_999_999)),
			Email:     fmt.Sprintf("cliente%05d@example.com", random.IntN(100_000)),
			BirthDate: placed.AddDate(-18-random.IntN(60), -random.IntN(12), -random.IntN(28)).Format(dateOnly),
		},
		Delivery: to,
	}
	for range 1 + random.IntN(3) {
		it := catalog[random.IntN(len(catalog))]
		it.Quantity = 1 + random.IntN(4)
		o.Items = append(o.Items, it)
		o.TotalCents += it.Quantity * it.PriceCents
	}
	if random.IntN(5) == 0 {
		o.Coupon = &coupons[random.IntN(len(coupons))]
	}
	o.Payment = payment{Method: "credit_card", Token: "tok_visa", Installments: 1 + random.IntN(6)}
	if random.IntN(3) == 0 {
		o.Payment = payment{Method: "pix", Token: "tok_pix"}
	}
	breakOrder(&o, faults(n), placed)
	return o
}

func breakOrder(o *order, fault string, placed time.Time) {
	switch fault {
	case "cpf":
		last := o.Customer.CPF[len(o.Customer.CPF)-1]
		o.Customer.CPF = o.Customer.CPF[:len(o.Customer.CPF)-1] + string('0'+(last-'0'+1)%10)
	case "minor":
		o.Customer.BirthDate = placed.AddDate(-15, 0, -9).Format(dateOnly)
	case "dates":
		o.Delivery.By = placed.AddDate(0, 0, -3).Format(dateOnly)
	case "timeout-1", "timeout-2", "timeout-3":
		o.Payment.Token = "tok_timeout_" + fault[len(fault)-1:]
	case "down":
		o.Payment.Token = "tok_acquirer_down"
	case "rate":
		o.Payment.Token = "tok_rate_limited"
	case "declined":
		o.Payment.Token = "tok_declined"
	case "coupon":
		unknown := "NATAL25" // not in the price book: the handler that reads it panics
		o.Coupon = &unknown
	}
}

func encode(o order) []byte {
	line, err := json.Marshal(o)
	if err != nil {
		panic(err) // an order has no field that JSON cannot say
	}
	return line
}

// spoil damages a line as real producers do: cut off, the wrong format, or
// bytes that are not UTF-8.
func spoil(n int, line []byte) []byte {
	switch n % 4 {
	case 0:
		return line[:len(line)*2/3]
	case 1:
		return []byte(`<order id="ORD-2026-XML"><total>2890</total></order>`)
	case 2:
		return append([]byte{0xff, 0xfe, 0x00}, line[:40]...)
	default:
		return append(line[:len(line)-1:len(line)-1], `,"total_cents":}`...)
	}
}
