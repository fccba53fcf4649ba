// Package client is the client of the REST API of dlqhttp. Its types are those of package wire.
//
//	c, err := client.New(client.Config{Server: "https://ops.example", Token: os.Getenv("REDRIVE_TOKEN")})
//	for entry, err := range c.Entries(ctx, wire.Filter{Topic: "orders"}, wire.Page{}) {
//		...
//	}
//
// Each method is one operation of the OpenAPI document and has its name: list-entries is [Client.ListEntries]. A
// response that is not a success is an [*Error] with the server's problem. When the server does not respond, requests
// that are safe to repeat are repeated: reads, and changes, which have an Idempotency-Key.
package client
