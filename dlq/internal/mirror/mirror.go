// Package mirror copies the values of a type to their JSON form and back. To start, pair the two with [New].
package mirror

import (
	"fmt"
	"maps"
	"reflect"
	"strings"
	"time"
)

// Mirror copies the values of a type to its JSON form and back, field by field: those with the same name, and those
// that are paired explicitly. So a new field has to be in both, and is copied in both directions.
type Mirror[V, W any] struct {
	fields []field
}

// field is a pair of fields.
type field struct {
	value, wire []int
	listed      bool // nil becomes an empty list in the JSON form
	to, from    func(dst, src reflect.Value)
}

// New pairs the fields of W with those of V. Others has the path in V of fields with another name in W ("Topic":
// "Origin.Topic"), empty for what the caller copies. A float64 FieldSeconds is paired with the duration Field. It
// panics for a field of either side without a partner.
func New[V, W any](others map[string]string) *Mirror[V, W] {
	return &Mirror[V, W]{fields: pair(reflect.TypeFor[V](), reflect.TypeFor[W](), others)}
}

// To is the JSON form of the value.
func (m *Mirror[V, W]) To(v *V) W {
	var w W
	copyTo(reflect.ValueOf(&w).Elem(), reflect.ValueOf(v).Elem(), m.fields)
	return w
}

// From returns the value of a JSON form.
func (m *Mirror[V, W]) From(w *W) V {
	var v V
	copyFrom(reflect.ValueOf(&v).Elem(), reflect.ValueOf(w).Elem(), m.fields)
	return v
}

func copyTo(w, v reflect.Value, fields []field) {
	for i := range fields {
		f := &fields[i]
		dst := w.FieldByIndex(f.wire)
		f.to(dst, v.FieldByIndex(f.value))
		if f.listed && dst.IsNil() {
			dst.Set(reflect.MakeSlice(dst.Type(), 0, 0))
		}
	}
}

func copyFrom(v, w reflect.Value, fields []field) {
	for i := range fields {
		f := &fields[i]
		f.from(v.FieldByIndex(f.value), w.FieldByIndex(f.wire))
	}
}

func pair(value, wire reflect.Type, others map[string]string) []field {
	var fields []field
	others = maps.Clone(others)
	paired := map[string]bool{}
	for w := range wire.Fields() {
		path, other := others[w.Name]
		delete(others, w.Name)
		if other && path == "" {
			paired[w.Name] = true
			continue
		}
		if !other {
			path = w.Name
		}
		f := field{wire: w.Index}
		v, found := fieldAt(value, path)
		if seconds := strings.TrimSuffix(path, "Seconds"); !found && seconds != path {
			path = seconds
			v, found = fieldAt(value, path)
		}
		if found {
			f.value = v.Index
			f.to, f.from = copier(w.Type, v.Type), copier(v.Type, w.Type)
		}
		if f.to == nil || f.from == nil {
			panic(fmt.Sprintf("mirror: %s.%s has no partner in %s", wire, w.Name, value))
		}
		options := w.Tag.Get("json")
		f.listed = w.Tag.Get("nullable") == "false" && !strings.Contains(options, "omit")
		paired[path] = true
		fields = append(fields, f)
	}
	for name := range others { // fields of the type without one in the JSON form
		paired[name] = true
	}
	requirePaired(value, "", paired)
	return fields
}

// requirePaired panics for a forgotten field in a struct of which other fields are paired.
func requirePaired(value reflect.Type, prefix string, paired map[string]bool) {
	for f := range value.Fields() {
		name := prefix + f.Name
		if paired[name] || !f.IsExported() {
			continue
		}
		for path := range paired {
			if strings.HasPrefix(path, name+".") {
				requirePaired(f.Type, name+".", paired)
				paired[name] = true
				break
			}
		}
		if !paired[name] {
			panic(fmt.Sprintf("mirror: %s has no partner for %s", value, name))
		}
	}
}

// fieldAt finds a field by its path.
func fieldAt(in reflect.Type, path string) (reflect.StructField, bool) {
	name, rest, nested := strings.Cut(path, ".")
	field, found := in.FieldByName(name)
	if !found || !nested {
		return field, found
	}
	inner, found := fieldAt(field.Type, rest)
	inner.Index = append(append([]int(nil), field.Index...), inner.Index...)
	return inner, found
}

var (
	typeOfDuration = reflect.TypeFor[time.Duration]()
	typeOfSeconds  = reflect.TypeFor[float64]()
)

// copier returns a function that copies one type to another; nil if they cannot be paired.
func copier(dst, src reflect.Type) func(dst, src reflect.Value) {
	switch {
	case dst == src:
		return func(dst, src reflect.Value) { dst.Set(src) }
	case dst.Kind() == reflect.String && src.Kind() == reflect.String:
		return func(dst, src reflect.Value) { dst.SetString(src.String()) }
	case dst == typeOfSeconds && src == typeOfDuration:
		return func(dst, src reflect.Value) { dst.SetFloat(time.Duration(src.Int()).Seconds()) }
	case dst == typeOfDuration && src == typeOfSeconds:
		return func(dst, src reflect.Value) { dst.SetInt(int64(src.Float() * float64(time.Second))) }
	case dst.Kind() != src.Kind():
		return nil
	case dst.Kind() == reflect.Slice:
		one := copier(dst.Elem(), src.Elem())
		if one == nil {
			return nil
		}
		return func(dst, src reflect.Value) {
			if src.IsNil() {
				return
			}
			dst.Set(reflect.MakeSlice(dst.Type(), src.Len(), src.Len()))
			for i := range src.Len() {
				one(dst.Index(i), src.Index(i))
			}
		}
	case dst.Kind() == reflect.Struct && src.ConvertibleTo(dst):
		return func(dst, src reflect.Value) { dst.Set(src.Convert(dst.Type())) }
	case dst.Kind() == reflect.Struct:
		fields := pair(src, dst, nil)
		return func(dst, src reflect.Value) { copyTo(dst, src, fields) }
	default:
		return nil
	}
}
