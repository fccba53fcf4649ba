package kafka_test

import (
	"flag"
	"os"
	"testing"
)

// TestMain lets more cases run at once than there are cores: they spend nearly all of their time waiting.
func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f != nil && f.Value.String() == f.DefValue {
		if err := f.Value.Set("16"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
