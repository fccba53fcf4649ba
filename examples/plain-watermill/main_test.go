package main

func Example() {
	main()
	// Unordered output:
	// fine: attempt 1 of 4
	// no address: attempt 1 of 4
	// dead letter "no address": permanent, an order needs an address
	// bank is down: attempt 1 of 4
	// bank is down: attempt 2 of 4
	// bank is down: attempt 3 of 4
}
