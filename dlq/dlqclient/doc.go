// Package dlqclient is the client of the REST API that dlqhttp serves, generated from its OpenAPI document.
//
//	client, err := dlqclient.NewClientWithResponses("https://ops.example/api/v1", dlqclient.WithToken(os.Getenv("REDRIVE_TOKEN")))
//	page, err := client.ListEntriesWithResponse(ctx, &dlqclient.ListEntriesParams{Topic: new("orders")})
//	if page.JSON200 == nil {
//		return dlqclient.ErrorOf(page.HTTPResponse, page.Body)
//	}
//
// The generated methods return no error for an answer that is a problem: ask [ErrorOf]. After a change of the API, go test ./dlq/dlqhttp
// -update writes the documents, and go generate ./dlq/dlqclient this package.
package dlqclient

//go:generate go tool -modfile=../../tools/go.mod oapi-codegen -config oapi-codegen.yaml openapi-3.0.yaml
//go:generate sh -c "sha256sum openapi-3.0.yaml client.gen.go > generated.sum"
