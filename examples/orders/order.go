package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/examples/internal/cpf"
)

// Order is a line of orders.ndjson.
type Order struct {
	ID       string    `json:"id"`
	PlacedAt time.Time `json:"placed_at"`
	Customer struct {
		Name      string `json:"name"`
		TaxNumber string `json:"cpf"`
		Email     string `json:"email"`
		BirthDate string `json:"birth_date"`
	} `json:"customer"`
	Items []struct {
		SKU        string `json:"sku"`
		Quantity   int    `json:"quantity"`
		PriceCents int    `json:"price_cents"`
	} `json:"items"`
	TotalCents int     `json:"total_cents"`
	Coupon     *string `json:"coupon"`
	Payment    struct {
		Method string `json:"method"`
		Token  string `json:"token"`
	} `json:"payment"`
	Delivery struct {
		By string `json:"by"`
	} `json:"delivery"`
}

// Errors that no retry can fix, because the order itself is invalid.
var (
	errTaxNumber = errors.New("validation: customer's tax number is invalid")
	errMinor     = errors.New("validation: customer is younger than 16")
	errDelivery  = errors.New("validation: delivery date is before the order was placed")
	errTotal     = errors.New("validation: total is not the sum of the items")
)

const minimumAge = 16

// validate returns an error if an order cannot be fulfilled.
func (o *Order) validate() error {
	if !cpf.Valid(o.Customer.TaxNumber) {
		return fmt.Errorf("%w: order %s", errTaxNumber, o.ID)
	}
	born, err := time.Parse(time.DateOnly, o.Customer.BirthDate)
	if err != nil {
		return fmt.Errorf("validation: birth date of order %s: %w", o.ID, err)
	}
	if born.AddDate(minimumAge, 0, 0).After(o.PlacedAt) {
		return fmt.Errorf("%w: order %s", errMinor, o.ID)
	}
	by, err := time.Parse(time.DateOnly, o.Delivery.By)
	if err != nil {
		return fmt.Errorf("validation: delivery date of order %s: %w", o.ID, err)
	}
	if by.AddDate(0, 0, 1).Before(o.PlacedAt) {
		return fmt.Errorf("%w: order %s", errDelivery, o.ID)
	}
	sum := 0
	for _, it := range o.Items {
		sum += it.Quantity * it.PriceCents
	}
	if sum != o.TotalCents {
		return fmt.Errorf("%w: order %s: %d, not %d", errTotal, o.ID, sum, o.TotalCents)
	}
	return nil
}

// discounts is the price book of coupons, in percent of the total.
var discounts = map[string]*int{"CAFE10": new(10), "FRETE0": new(0), "VOLTA15": new(15)}

// loyaltyPoints is the handler bug of this example: a coupon that is not in the
// price book is a nil pointer, and the handler panics.
func loyaltyPoints(o *Order) int {
	total := o.TotalCents
	if o.Coupon != nil {
		total -= total * *discounts[*o.Coupon] / 100
	}
	return total / 1000
}
