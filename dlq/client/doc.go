// Package client is the client of the REST API that dlqhttp serves. It speaks package wire.
//
//	c, err := client.New(client.Config{Server: "https://ops.example", Token: os.Getenv("REDRIVE_TOKEN")})
//	for entry, err := range c.Entries(ctx, wire.Filter{Topic: "orders"}, wire.Page{}) {
//		...
//	}
//
// A method stands for one operation of the OpenAPI document and has its name: list-entries is [Client.ListEntries]. An
// answer that is not a success is an [*Error] with the server's problem in it. What is safe to repeat is repeated when
// the server does not answer: reading, and changes, which carry an Idempotency-Key.
package client
