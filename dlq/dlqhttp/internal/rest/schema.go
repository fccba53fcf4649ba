package rest

import (
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq/wire"
)

// newSchemas is the registry of the document's schemas. The two types with their own JSON encoding are described here.
func newSchemas() huma.Registry {
	schemas := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	schemas.RegisterTypeAlias(reflect.TypeFor[wire.Text](), reflect.TypeFor[textSchema]())
	schemas.RegisterTypeAlias(reflect.TypeFor[wire.Headers](), reflect.TypeFor[headersSchema]())
	schemas.RegisterTypeAlias(reflect.TypeFor[wire.Seconds](), reflect.TypeFor[float64]())
	return schemas
}

// named puts a schema into the components and refers to it.
func named(r huma.Registry, name string, s *huma.Schema) *huma.Schema {
	r.Map()[name] = s
	return &huma.Schema{Ref: "#/components/schemas/" + name}
}

type textSchema struct{}

// Schema is the schema of wire.Text.
func (textSchema) Schema(r huma.Registry) *huma.Schema {
	one := 1
	return named(r, "Text", &huma.Schema{Description: "Text, or bytes that are not text.", OneOf: []*huma.Schema{
		{Type: huma.TypeString},
		{
			Type: huma.TypeArray, MinItems: &one, MaxItems: &one,
			Items: &huma.Schema{Type: huma.TypeString, ContentEncoding: "base64"},
		},
	}})
}

type headersSchema struct{}

// Schema is the schema of wire.Headers.
func (headersSchema) Schema(r huma.Registry) *huma.Schema {
	two, text := 2, textSchema{}.Schema(r)
	return named(r, "Headers", &huma.Schema{
		Description: "Headers; where a name is not text, pairs of a name and a value.",
		OneOf: []*huma.Schema{
			{Type: huma.TypeObject, AdditionalProperties: text},
			{Type: huma.TypeArray, Items: &huma.Schema{Type: huma.TypeArray, MinItems: &two, MaxItems: &two, Items: text}},
		},
	})
}
