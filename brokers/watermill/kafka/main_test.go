package kafka_test

import (
	"flag"
	"os"
	"testing"
)

// TestMain runs more cases in parallel than there are cores, because they wait nearly all of the time.
func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f != nil && f.Value.String() == f.DefValue {
		if err := f.Value.Set("16"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
