package notify_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/notify"
	"github.com/redrive-go/redrive/dlq/wire"
)

// The handler of a receiver's topic passes each notice to Deliver, which posts it. The package comment has the wiring.
func ExampleNotifier_Deliver() {
	ctx := context.Background()
	webhook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var notice wire.Notice
		if err := json.NewDecoder(r.Body).Decode(&notice); err != nil {
			fmt.Println(err)
		}
		fmt.Println(r.Header.Get(notify.HeaderID), r.Header.Get(notify.HeaderSignature) != "", notice.Text)
	}))
	defer webhook.Close()
	dir, err := os.MkdirTemp("", "redrive-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	letters, err := dlq.Open(ctx, filepath.Join(dir, "dead-letters.db"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer letters.Close()
	broker, err := memory.New(brokers.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer broker.Close()

	notifier, err := notify.New(notify.Config{
		Store: letters.Store(), Publisher: broker.Publisher(),
		Receivers: []notify.Receiver{{Name: "ops", URL: webhook.URL, Secret: "a shared secret"}},
	})
	if err != nil {
		fmt.Println(err) // names every fault of the configuration
		return
	}
	payload := []byte(`{"id":"n-1","kind":"new_cause","text":"New cause of dead letters: bank: timeout (in charge)"}`)
	if err := notifier.Deliver(ctx, "ops", payload); err != nil {
		fmt.Println(err) // for the pipeline to retry
	}
	// Output:
	// n-1 true New cause of dead letters: bank: timeout (in charge)
}
