package driver_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// fill gives every field below v a value that no other has.
func fill(v reflect.Value, n *int64) {
	*n++
	if _, isTime := reflect.TypeAssert[time.Time](v); isTime {
		v.Set(reflect.ValueOf(time.Unix(*n, 1000).UTC()))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for _, field := range v.Fields() {
			fill(field, n)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Array:
		for i := range v.Len() {
			v.Index(i).SetUint(uint64(*n))
		}
	case reflect.Slice:
		v.SetBytes(fmt.Append(nil, *n))
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"key": strconv.FormatInt(*n, 10)}))
	case reflect.String:
		v.SetString(fmt.Sprint("text ", *n))
	case reflect.Bool:
		v.SetBool(true)
	default:
		v.SetInt(*n)
	}
}

// Every field of an entry and its body is in the JSON form and is read back from it, so that none is forgotten by an
// export, a spool or the API.
func TestEntry_WireHasEveryField(t *testing.T) {
	var entry, read driver.Entry
	var n int64
	fill(reflect.ValueOf(&entry).Elem(), &n)
	entry.Body.Rehash() // a digest that fits the payload
	entry.Body.ContentType = "text/plain"
	o := &entry.Origin // which message it was to its broker is not stored
	o.Incarnation, o.Redelivered, o.DeliveryCount = "", false, 0

	data, err := json.Marshal(entry.Detail())
	require.NoError(t, err)
	var detail wire.EntryDetail
	require.NoError(t, json.Unmarshal(data, &detail))
	require.NoError(t, read.SetDetail(&detail))
	require.Equal(t, entry, read)
	require.NotEqual(t, envelope.Collected{}, read.Body.Collected)
}
